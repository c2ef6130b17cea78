#!/bin/sh
# Installs the servers that tests/servers and benchmarks/claims start for themselves, PostgreSQL and MariaDB, and the
# tool that checks alert rules.
# Nothing is done if they are there. No system service is started; the tests run their own, on loopback, in a
# temporary directory. Needs Debian or Ubuntu and root, or says what is missing and ends with 1.
set -eu

has_postgresql() {
    command -v initdb >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1
}

# mariadb-install-db needs my_print_defaults, which Debian keeps with the clients.
has_mariadb() {
    { [ -x /usr/sbin/mariadbd ] || command -v mariadbd; } && command -v mariadb-install-db && command -v my_print_defaults
} >/dev/null 2>&1

missing=
has_postgresql || missing="$missing postgresql"
has_mariadb || missing="$missing mariadb-server-core mariadb-client-core"
command -v promtool >/dev/null 2>&1 || missing="$missing prometheus"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "Missing servers for the tests:$missing. Install these packages (apt-get install$missing, as root)," >&2
    echo "or put initdb, pg_ctl, mariadbd and mariadb-install-db on PATH." >&2
    exit 1
fi

# While this file says 101, packages start no service; one that is there already belongs to somebody else.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
fi

export DEBIAN_FRONTEND=noninteractive
apt-get update -q
# $missing is a list of package names: it must be split.
# shellcheck disable=SC2086
apt-get install -y -q --no-install-recommends $missing

has_postgresql && has_mariadb && command -v promtool >/dev/null
