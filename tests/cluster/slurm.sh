#!/usr/bin/env bash
# Slurm on the hosts of hosts.sh, which are up: slurmctld here, slurmd on each, with 4 pretend GPUs.
#   slurm.sh up DIR STATE | down DIR
# Needs root, slurmctld and slurmd. Then SLURM_CONF=DIR/slurm.conf.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$2
export SLURM_CONF=$dir/slurm.conf

up() {
    net=$("$here/hosts.sh" address "$3")
    mkdir -p "$dir"/{state,log,spool-n0,spool-n1}
    for i in 0 1 2 3; do mknod "$dir/gpu$i" c 1 3; done
    cat >"$SLURM_CONF" <<CONF
ClusterName=pynccl
SlurmctldHost=$(hostname -s)($net.1)
SlurmctldPort=$((16817 + 2 * ${net##*.}))
SlurmdPort=$((16818 + 2 * ${net##*.}))
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmdSpoolDir=$dir/spool-%n
StateSaveLocation=$dir/state
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
ReturnToService=2
KillWait=3
GresTypes=gpu
NodeName=n0 NodeAddr=$net.10 CPUs=4 CoresPerSocket=4 RealMemory=1000 Gres=gpu:4
NodeName=n1 NodeAddr=$net.11 CPUs=4 CoresPerSocket=4 RealMemory=1000 Gres=gpu:4
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
    printf 'AutoDetect=off\nNodeName=n[0-1] Name=gpu File=%s/gpu[0-3]\n' "$dir" >"$dir/gres.conf"
    [[ ! -e /usr/lib/x86_64-linux-gnu/slurm-wlm/spank_pbs.so ]] ||
        echo 'optional spank_pbs.so' >"$dir/plugstack.conf"
    slurmctld -c -f "$SLURM_CONF"
    for host in n0 n1; do "$here/hosts.sh" on "$3" $host slurmd -c -f "$SLURM_CONF"; done
    for _ in $(seq 100); do
        [[ $(sinfo -h -N -t idle 2>/dev/null | wc -l) != 2 ]] || exit 0
        sleep 0.1
    done
    echo "the nodes did not come up:" && sinfo && tail -5 "$dir"/log/*
    exit 1
}

down() {
    scancel --state=RUNNING --user=root 2>/dev/null || true
    for file in "$dir"/slurmctld.pid "$dir"/slurmd-*.pid; do
        [[ ! -s $file ]] || kill "$(cat "$file")" 2>/dev/null || true
    done
}

"$1" "$@"
