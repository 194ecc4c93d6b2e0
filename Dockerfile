# CPU by default. For NVIDIA cards: --build-arg BASE=pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime
# These builds have not been tried: the project is tested without containers.
ARG BASE=python:3.11-slim
FROM ${BASE}
WORKDIR /fedloom
COPY . .
RUN pip install --no-cache-dir '.[plots,encoders,onnx,privacy,flower]'
# Workers share memory through /dev/shm; 64 MB, the usual size in a container, is enough for small runs only.
WORKDIR /work
ENTRYPOINT ["fedloom"]
CMD ["--help"]
