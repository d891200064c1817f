#!/usr/bin/env bash
# Mutation score: change code in every way mutmut knows, and count how often a unit test notices.
# Usage: tests/mutation.sh [ROOM/FILE …]   for example module_utils/_fabric/lldp; none means the parsers of vendor tools
# MUTATION_PROCESSES (default 1) sets how many mutants run at once. What no test noticed is listed in
# .cache/mutation/survivors.txt; see one with: cd .cache/mutation && ../../.venv/bin/mutmut show NAME
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
files=("$@")
[ ${#files[@]} -gt 0 ] ||
  files=(module_utils/_fabric/{ibdev2netdev,show_gids,lldp,netplan} module_utils/_qos/*.py)
files=("${files[@]%.py}")
files=("${files[@]#plugins/}")
work=$root/.cache/mutation
collection=ansible_collections/sparkmatrix/cluster

# mutmut maps a file's path to the module that tests import. Only a tree of real directories (not the symlink below
# collections/) gives it the right name.
rm -rf "$work"
mkdir -p "$work/$collection/tests/unit/plugins"
cp -r plugins "$work/$collection/"
cp -r docs roles galaxy.yml "$work/$collection/"
cp -r playbooks inventories tools "$work/$collection/"
find "$work/$collection" -type l -delete # to collections: mutmut follows them
cp -r tests/lab tests/bench "$work/$collection/tests/"
cp -r tests/unit/fixtures tests/unit/*.py "$work/$collection/tests/unit/"
tests=()
for file in "${files[@]}"; do
  test=tests/unit/plugins/${file%/*}/test_${file##*/}.py
  [ -f "$test" ] || test=${test%/*} # tested with its room
  mkdir -p "$work/$collection/${test%/*}"
  cp -r "$test" "$work/$collection/${test%/*}/"
  tests+=("$collection/$test")
done
cd "$work"
{
  printf '[mutmut]\nsource_paths=%s/plugins\nalso_copy=\n    pytest.ini\n' "$collection"
  printf "    $collection/%s\n" tests docs roles playbooks inventories tools galaxy.yml
  printf 'only_mutate=\n'
  printf '    */plugins/%s.py\n' "${files[@]}"
  # A fixed seed: without it a mutant may live in one run and die in the next.
  printf 'pytest_add_cli_args=\n    -q\n    --hypothesis-seed=0\n'
  printf 'pytest_add_cli_args_test_selection=\n'
  printf '    %s\n' "${tests[@]}"
} > setup.cfg
printf '[pytest]\npythonpath = . %s/tests/unit %s/tests/bench %s/tools\naddopts = --import-mode=importlib -p no:cacheprovider\n' "$collection" "$collection" "$collection" > pytest.ini

export PATH="$root/.venv/bin:$PATH"
nice -n 19 mutmut run --max-children "${MUTATION_PROCESSES:-1}" > mutmut.log 2>&1 ||
  { tr '\r' '\n' < mutmut.log | tail -n 20; exit 1; }
mutmut results 2> /dev/null | sed 's/^ *//' > survivors.txt
python - << 'EOF'
import collections
import json
import pathlib
import sys

FLOOR = 80  # percent, per file
SURVIVED, UNTESTED, SKIPPED = 0, (5, 33), 34  # exit codes of mutmut; with all others a test noticed
low = []
for path in sorted(pathlib.Path("mutants").rglob("*.py.meta")):
    codes = collections.Counter(json.loads(path.read_text())["exit_code_by_key"].values())
    codes.pop(SKIPPED, None)
    total = sum(codes.values())
    if not total:
        continue
    missed = sum(codes[code] for code in (SURVIVED, *UNTESTED))
    score = 100 * (total - missed) / total
    print(f"{path.stem:<20} {total:>5} mutants {missed:>4} missed  {score:5.1f} %")
    low += [path.stem] if score < FLOOR else []
sys.exit(f"below {FLOOR} %: {', '.join(low)}" if low else 0)
EOF
