#!/bin/sh
# Fetches the jars of scripts/jars/NAME.xml into FOLDER by Maven, and checks them against scripts/jars/NAME.sha256.
#
#   scripts/fetch_jars.sh NAME FOLDER
#
# Nothing is done if they are all there and genuine; then no network is needed. Else FOLDER is replaced as a whole.
# Maven is installed if it is missing and we are root on Debian or Ubuntu.
set -eu

name=$1
folder=$2
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
sums=$here/jars/$name.sha256

die() {
    echo "fetch_jars: $*" >&2
    exit 1
}

is_genuine() {
    [ -d "$1" ] && (cd "$1" && sha256sum --check --status "$sums") 2>/dev/null
}

is_genuine "$folder" && exit 0
command -v sha256sum >/dev/null || die "sha256sum is missing"
if ! command -v mvn >/dev/null; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        die "Maven (mvn) is missing: install it, or put the jars of $sums into $folder"
    fi
    apt-get update -q && apt-get install -y -q --no-install-recommends maven || die "Maven could not be installed"
fi

mkdir -p "$(dirname "$folder")"
# Maven takes a relative folder as one beside the pom.
folder=$(CDPATH= cd -- "$(dirname -- "$folder")" && pwd)/$(basename -- "$folder")
draft=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$draft"' EXIT
chmod 755 "$draft"
echo "fetch_jars: fetching $name"
mvn -q -B -f "$here/jars/$name.xml" dependency:copy-dependencies -DincludeScope=runtime "-DoutputDirectory=$draft" ||
    die "Maven could not fetch $name. Is there a way to a Maven repository?"
is_genuine "$draft" || die "what Maven fetched as $name is not what was expected (SHA-256 differs, see $sums)"
rm -rf "$folder"
mv "$draft" "$folder"
