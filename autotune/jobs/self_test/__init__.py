"""The self-test of a job: `mpirun -n N autotune doctor`. Each check is a line that names what is wrong, and on which ranks."""
