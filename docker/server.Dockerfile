# The main host: HTTP API, scheduler, and whatever layers are not on workers.
#   docker build -f docker/server.Dockerfile -t llama-serve .
# PIP_ARGS reaches pip, for example to take torch from an index of CPU builds.
FROM python:3.12-slim

ARG PIP_ARGS=""
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY . .
RUN pip install --no-cache-dir ${PIP_ARGS} -c constraints.txt .

RUN useradd --create-home serve && mkdir /cache && chown serve /cache
USER serve
WORKDIR /home/serve
ENV LLAMA_SERVE_CACHE=/cache
VOLUME /cache
EXPOSE 8080
HEALTHCHECK --interval=10s --start-period=120s CMD \
  ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health')"]
ENTRYPOINT ["llama-serve", "--host", "0.0.0.0", "--port", "8080"]
