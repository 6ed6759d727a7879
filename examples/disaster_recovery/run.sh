#!/usr/bin/env bash
# Starts 8 workers and a scheduler in the background; their output goes to the folder device.
EXEC_PATH=$(pwd)
HERE=$(dirname "${BASH_SOURCE[0]}")
if [ ! -d "${EXEC_PATH}/MNIST_Data" ]; then
    python "${HERE}/make_data.py" || exit 1
fi
export DATA_PATH=${EXEC_PATH}/MNIST_Data/train/

export MS_ENABLE_RECOVERY=1                # Enable disaster recovery
export MS_RECOVERY_PATH=./recovery/        # Set the disaster recovery file save path

export MS_WORKER_NUM=8                              # Set the number of workers in the cluster
export MS_SCHED_HOST=127.0.0.1                      # Set the address of the scheduler
export MS_SCHED_PORT=${MS_SCHED_PORT:-8118}         # Set the port of the scheduler
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}        # One thread for each of so many processes

rm -rf device
mkdir device
echo "start training"

for ((i = 0; i < MS_WORKER_NUM; i++)); do
    export MS_ROLE=MS_WORKER
    export MS_NODE_ID=$i                            # Set the id of the process, which is its rank
    python "${HERE}/train.py" "$@" > "device/worker_$i.log" 2>&1 &
done

export MS_ROLE=MS_SCHED
export MS_NODE_ID=sched
python "${HERE}/train.py" "$@" > device/scheduler.log 2>&1 &
