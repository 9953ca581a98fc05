# Sourced by the other scripts: a virtual environment with the project and the extras in $1.
# Makes .venv unless one is active; asks the network only when pyproject.toml or the extras have changed.

say() { printf '\n== %s\n' "$*"; }

if [[ -z "${VIRTUAL_ENV:-}" ]]; then
    if [[ ! -x .venv/bin/python ]]; then
        say "virtual environment in .venv"
        "${PYTHON:-python3}" -m venv .venv
    fi
    # shellcheck disable=SC1091
    source .venv/bin/activate
fi
python -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed." >&2; exit 2; }

stamp="$VIRTUAL_ENV/.verl-hier-$(cat pyproject.toml setup.py <(echo "$1") | cksum | tr -d ' ')"
if [[ ! -e "$stamp" ]]; then
    say "dependencies (about 2 GB, once)"
    python -m pip install --upgrade pip
    # Python compiles a module when it is first imported; to compile all of them here takes longer than to fetch them.
    # The newest torch that the other packages were tested with; kept when one is there.
    python -c 'import torch' 2>/dev/null || python -m pip install --no-compile 'torch==2.13.0'
    python -m pip install --no-compile -e ".[$1]"
    touch "$stamp"
fi

# More threads than cores make small models slower, and Ray starts several processes.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" TOKENIZERS_PARALLELISM=false
# The scripts start hundreds of processes, each of which would compile the project's modules again.
unset PYTHONDONTWRITEBYTECODE
