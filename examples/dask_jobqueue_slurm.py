"""Workers of dask as Slurm jobs, and one run on all of them: pip install dask-jobqueue 'vidprep[dask]'

    DASK_CONFIG=$PWD/examples/dask.yaml python examples/dask_jobqueue_slurm.py 64 raw/ ready/ --fps 15 --short-side 240 --gop 5

The first argument is how many jobs of one core there are at most; what follows goes to `vidprep transcode`. Sources and
destination lie on a file system that all nodes see. Jobs that Slurm ends are started again, and their videos too.
"""

import subprocess
import sys

from dask_jobqueue import SLURMCluster

if __name__ == "__main__":
    if set(sys.argv[1:]) <= {"-h", "--help"}:
        sys.exit(print(__doc__))
    jobs, *arguments = sys.argv[1:]
    with SLURMCluster(cores=1, processes=1, memory="2GB", walltime="04:00:00") as cluster:
        cluster.adapt(minimum_jobs=1, maximum_jobs=int(jobs))
        command = [
            "vidprep",
            "transcode",
            *arguments,
            "--backend",
            "dask",
            "--cluster-address",
            cluster.scheduler_address,
        ]
        sys.exit(subprocess.run(command, check=False).returncode)
