#!/usr/bin/env bash
# Makes a virtual environment for each peer that speed.py and peer_learning.py run: benchmarks/peers.sh [name ...]
set -eu
folder=${PEERS:-$(dirname "$0")/.venvs}
mkdir -p "$folder"
make_peer() {
  name=$1; shift
  [ -e "$folder/$name/.done" ] && return 0
  python3 -m venv "$folder/$name"
  "$folder/$name/bin/pip" install --quiet "torch>=2.11,<2.14" numpy
  "$folder/$name/bin/pip" install --quiet "torch>=2.11,<2.14" "$@"
  touch "$folder/$name/.done"
}
for peer in "${@:-sb3 sbx tianshou axiomrl d3rlpy mbrl imitation}"; do
  for name in $peer; do
    case $name in
      sb3) make_peer sb3 stable-baselines3 sb3-contrib "gymnasium[mujoco]" fastapi uvicorn httptools uvloop ;;
      sbx) make_peer sbx sbx-rl "gymnasium[mujoco]" ;;
      tianshou) make_peer tianshou tianshou ;;
      axiomrl) make_peer axiomrl axiomrl ;;
      imitation) make_peer imitation imitation "gymnasium[mujoco]" ;;
      d3rlpy) make_peer d3rlpy d3rlpy "gymnasium[mujoco]" ;;
      mbrl)  # mbrl-lib pins packages that no longer install; its models and planners need only these
        make_peer mbrl hydra-core gymnasium tqdm termcolor matplotlib imageio sk-video
        "$folder/mbrl/bin/pip" install --quiet --no-deps mbrl ;;
      *) echo "unknown peer $name" >&2; exit 2 ;;
    esac
  done
done
