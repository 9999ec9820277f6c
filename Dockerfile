# The image of every process of fastiov's in docker-compose.yml: one binary, chosen by the command. It holds what sim needs; a node with VFs
# belongs on the host itself (`make up`), whose devices, cgroups and kernel it works with.
FROM golang:1.26.0-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-X github.com/fastiov/fastiov/command.version=$VERSION" -o /fastiov ./cmd/fastiov

FROM debian:12.11-slim AS fastiov
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates curl && rm -rf /var/lib/apt/lists/*
COPY --from=build /fastiov /usr/local/bin/fastiov
ENTRYPOINT ["fastiov"]
