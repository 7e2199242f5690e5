-- A modulefile for Lmod; it finds the repository or the installation that it lies in:
--   module use /path/to/annulus/scripts/modules
--   module load annulus
-- Where MPI and HDF5 are modules too, name those that it was built with: depends_on("openmpi/4.1.4", "hdf5/1.10.8")
help([[Annulus trains neural networks with synchronous data parallelism. "annulus --help" lists everything;
sbatch $ANNULUS_ROOT/scripts/slurm/train.sbatch --data FILE --out FOLDER submits a job.]])
whatis("Name: annulus")
whatis("Description: synchronous data-parallel training over MPI")

local root = myFileName():gsub("/scripts/modules/[^/]*$", "")
setenv("ANNULUS_ROOT", root)
prepend_path("PATH", pathJoin(root, isDir(pathJoin(root, "build")) and "build" or "../../bin"))
