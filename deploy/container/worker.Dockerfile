# A worker's image: any with Python, and libhoist of the very release that the
# node runs. Add what the worker itself needs, such as torch.
ARG BASE=docker.io/library/python:3.12-slim-bookworm
ARG HOIST=hoist
FROM ${HOIST} AS hoist
FROM ${BASE}
RUN --mount=type=bind,from=hoist,source=/opt/hoist/python,target=/hoist,rw \
    pip install --no-cache-dir /hoist
