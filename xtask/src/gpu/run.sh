#!/bin/bash
# Runs the programs that `cargo xtask gpu` has packed beside this script on the NVIDIA GPUs of this machine, and writes
# a report in the form of docs/gpu-results.md.
#
#   bash run.sh REPORT.md [tests] [speed] [training]
#
# Needs the driver, NVRTC with CUDA's headers (CUDA_PATH), and as far as they are there NCCL, cuBLASLt, and PyTorch for
# `python3`. Libraries of Python's packages are found by themselves. Logs go beside the report, into REPORT.md.logs.
set -u
here=$(cd "$(dirname "$0")" && pwd)
report=${1:?where does the report go? bash run.sh REPORT.md [tests] [speed] [training]}
shift
parts=${*:-tests speed training}
logs=$report.logs
mkdir -p "$logs"

packages=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null)
of_packages=$(find "$packages/nvidia" -type d -name lib 2>/dev/null | tr '\n' ':')
nvcc=$(command -v nvcc || ls /usr/local/cuda*/bin/nvcc 2>/dev/null | head -1)
nvcc=$(readlink -m "${nvcc:-/usr/local/cuda/bin/nvcc}")
export CUDA_PATH=${CUDA_PATH:-${nvcc%/bin/nvcc}}
export LD_LIBRARY_PATH=$of_packages$CUDA_PATH/lib64:${LD_LIBRARY_PATH:-}
gpus=$(nvidia-smi -L | wc -l)

# name limit command...: runs a program into a log, for a number of seconds at most.
run() {
    local name=$1 limit=$2 start=$SECONDS
    shift 2
    timeout -k 5 "$limit" "$@" >"$logs/$name.log" 2>&1
    ended=$?
    took=$((SECONDS - start))
}

# name command...: runs tests, and writes how many passed.
tests() {
    local name=$1
    shift
    run "$name" 600 "$@" --test-threads=1
    local result
    result=$(sed -nE 's/^test result: [^.]*\. ([0-9]+ passed; [0-9]+ failed).*/\1/p' "$logs/$name.log" | tail -1)
    local state="${result:-ended with $ended}"
    [ "$ended" = 124 ] && state="not done after 600 s"
    printf '| %s | %s | %s s |\n' "$name" "$state" "$took" >>"$report"
    failed+=$(grep -E '^test .* FAILED$' "$logs/$name.log" | sed "s|^|- $name: |")$'\n'
}

# name command...: trains, and writes tokens/s, the step, the plan's memory and what the driver shows at most.
train() {
    local name=$1
    shift
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -lms 250 >"$logs/$name.memory" &
    local watch=$!
    run "$name" 300 "$@" --no-plot
    kill $watch
    local last used planned
    last=$(sed -nE 's/^loss [0-9.]+ to ([0-9.]+), ([0-9,]+) tokens\/s \(median step ([0-9.]+ ms)\).*/\2 | \3 | \1/p' \
        "$logs/$name.log" | tail -1)
    planned=$(grep -oE '[0-9.]+ [KMG]iB(\/rank)?' "$logs/$name.log" | tail -1)
    used=$(sort -n "$logs/$name.memory" | tail -1)
    printf '| %s | %s | %s | %s MiB |\n' "$name" "${last:-ended with $ended |  | }" "$planned" "$used" >>"$report"
}

{
    echo "# A run on $gpus GPU(s), $(date -u +%F)"
    echo
    nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total --format=csv,noheader | sed 's/^/- /'
    echo "- $(nproc) cores, CUDA at $CUDA_PATH"
} >"$report"

for part in $parts; do
    case $part in
    tests)
        printf '\n## Tests\n\n| what | result | time |\n| --- | --- | --- |\n' >>"$report"
        failed=
        # What needs CUDA in software is left out, and what needs more GPUs than there are.
        of_021=(--skip faults:: --skip too_old) of_engine=() alone=()
        if [ "$gpus" -lt 2 ]; then
            of_021+=(--skip gpus --skip processes)
            of_engine+=(--skip two_gpus)
            alone=(one_member processes_copy gpus_copy)
        fi
        if [ "$gpus" -lt 4 ]; then of_021+=(--skip four); fi
        if [ "$gpus" -lt 8 ]; then
            of_021+=(--skip eight --skip families_on_gpus)
            of_engine+=(--skip eight_gpus)
        fi
        tests "Burn 0.22.1, ranks on a GPU" "$here/cuda" --ignored
        tests "Burn 0.21, ranks on a GPU" "$here/cuda-021" --ignored "${of_021[@]}"
        tests "CubeCL 0.10's memory and stream" "$here/engine-021" --ignored gpus::cuda "${of_engine[@]}"
        tests "NCCL, copies, workspaces" "$here/gpu" --ignored "${alone[@]:-real}" --skip a_call_that_fails
        tests "float8, kernels and engines" "$here/cuda_float8" --ignored
        printf '\n%s\n' "$failed" | cat -s >>"$report"
        ;;
    speed)
        run gpu_gemm 300 "$here/gpu_gemm" --bench
        printf '\n## Products in float8\n\n```text\n%s\n```\n' "$(cat "$logs/gpu_gemm.log")" >>"$report"
        run llama_gpu 600 "$here/llama_gpu" --bench
        printf '\n## Steps beside Burn alone\n\n```text\n%s\n```\n' "$(cat "$logs/llama_gpu.log")" >>"$report"
        ;;
    training)
        printf '\n## Training\n\n| run | tokens/s | step | last loss | plan | driver |\n| --- | --- | --- | --- | --- | --- |\n' \
            >>"$report"
        for mesh in dp=1 fsdp=2 fsdp=2,tp=2; do
            train "S, $mesh" "$here/llama" pretrain --backend cuda --size S --steps 30 --mesh "$mesh"
        done
        for type in f32 bf16; do
            train "1b, dp=1, $type" "$here/llama" pretrain --backend cuda --size 1b --batch 4 --seq 1024 --steps 6 \
                --mesh dp=1 --param-dtype "$type"
        done
        train "1b, fsdp=2,tp=2, bf16" "$here/llama" pretrain --backend cuda --size 1b --batch 4 --seq 1024 --steps 6 \
            --mesh fsdp=2,tp=2 --param-dtype bf16
        run finetune 300 "$here/llama" finetune --backend cuda --no-plot
        printf '\n`llama finetune --backend cuda` (%s s):\n\n```text\n%s\n```\n' "$took" \
            "$(tail -8 "$logs/finetune.log")" >>"$report"
        run torch 300 python3 "$here/llama.py"
        printf '\nPyTorch, the same models and batches:\n\n```text\n%s\n```\n' "$(cat "$logs/torch.log")" >>"$report"
        ;;
    *)
        echo "no part \`$part\`: tests, speed, training" >&2
        exit 2
        ;;
    esac
done
cat "$report"
