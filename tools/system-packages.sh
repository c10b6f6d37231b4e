#!/usr/bin/env bash
# Installs what tools/system-packages.txt lists for GROUP (test, bench) and this machine lacks.
# A package that brings a service is left alone where a service manager would start it now and at each boot, unless
# CI=true: nobody's own machine begins to listen for the sake of a test.
# Exit 1 when something is still missing afterwards. Usage: tools/system-packages.sh GROUP
set -euo pipefail
cd "$(dirname "$0")/.."
group=$1
PATH=$PATH:/usr/sbin:/sbin

missing() {
    local package command users brings
    while read -r package command users brings; do
        [[ $package == \#* || -z $package || ,$users, != *,$group,* ]] && continue
        [[ $brings == service && ${1-} == harmless ]] && continue
        command -v "$command" >/dev/null || echo "$package"
    done <tools/system-packages.txt | sort -u
}

mapfile -t wanted < <(missing)
((${#wanted[@]})) || exit 0

as_root=()
if ((EUID)); then
    as_root=(sudo -n)
    sudo -n true 2>/dev/null || as_root=(false)
fi
[[ -d /run/systemd/system && ${CI-} != true ]] && mapfile -t wanted < <(missing harmless)
if ((${#wanted[@]})) && [[ ${as_root[*]} != false ]] && command -v apt-get >/dev/null; then
    echo "installing system packages: ${wanted[*]}"
    apt_get() { ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" </dev/null; }
    # A fresh machine has no package lists; one that has them need not fetch them again.
    apt_get install -y --no-install-recommends "${wanted[@]}" 2>/dev/null ||
        { apt_get update && apt_get install -y --no-install-recommends "${wanted[@]}"; } || true
fi

mapfile -t wanted < <(missing)
((${#wanted[@]})) || exit 0
echo "missing system packages: ${wanted[*]} (install them with: apt-get install ${wanted[*]})" >&2
exit 1
