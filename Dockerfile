# An image with the commands, the configurations and the extras for tables of one's own, models in files and the
# comparison page.
#
#   docker build -t fedjax_het .
#   docker run --rm -v "$PWD:/work" fedjax_het run --workdir=/work/runs/quickstart
#   docker build -t fedjax_het:cuda --build-arg EXTRAS=compare,tables,export,cuda12 .     # for NVIDIA GPUs: docker run --gpus all
#
# Compiled programs are kept in /cache, which a volume keeps between containers: -v fedjax_het_cache:/cache. An image for
# launch/jobset.yaml starts the same way, with its own command.
FROM python:3.12-slim
ARG EXTRAS=compare,tables,export
COPY . /opt/fedjax_het
RUN pip install --no-cache-dir "/opt/fedjax_het[${EXTRAS}]"
ENV JAX_COMPILATION_CACHE_DIR=/cache
WORKDIR /work
ENTRYPOINT ["fedjax-het"]
CMD ["run", "--workdir=/work/runs/quickstart"]
