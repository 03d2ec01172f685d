#!/usr/bin/env bash
# Installs what is needed and runs the main job: MobileNetV2 trained with nn.Graph on real images.
# Arguments go to examples/train_mobilenet.py (--help lists them).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
gflow_env examples
cd "$GFLOW_ROOT"
exec python examples/train_mobilenet.py "$@"
