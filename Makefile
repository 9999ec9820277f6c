# make up      cold-starts a function in a microVM with a passed-through VF, from a bare Debian 12 or Ubuntu LTS
# make test    passes the tests, tier by tier
# make help    lists the rest
#
# make up WITH="prometheus redis registry" starts those beside it, from Debian's packages; .ci/beside stop ends them.
# make up SANDBOX=containerd takes containers in the place of microVMs, and needs no testbed.
# What is missing on the machine is installed once by .ci/bootstrap; what is built is cached by the hash of its inputs.
SHELL       := /bin/bash
export PATH := $(PATH):/usr/local/go/bin
# A distribution's Go may be older than go.mod asks for and pinned to itself; let it fetch the one named there.
export GOTOOLCHAIN := auto
VERSION     := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# The packages with files behind a build tag.
TAGS         = failpoint,trust,images,qemu,patched,region,lean,openwhisk,knative,dashboards,page,load,node,containers,cni,scon,conformance,oracle,instructions
TAGGED       = $(shell grep -rlE --include='*.go' '^//go:build [a-z]' . | xargs -n1 dirname | sort -u)
SCRIPTS      = $(shell grep -rlIE --exclude-dir=.git --exclude-dir=bin '^\#!.*/(ba)?sh' . )
# Where `make generate` writes; the test that generated files are up to date names another folder.
OUT         ?= .

.DEFAULT_GOAL := help
# The tiers that `make test` runs; ONLY names others: `.ci/tiers` lists them.
ONLY        ?= compile T0 T1 T2 trust containers scon T3?
.PHONY: help up build load test lint generate kernel-bump clean-cache clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: build ## Start fastiov here, or in a testbed where this machine cannot be a node, and cold-start seven functions
	@[ -z "$(WITH)" ] || .ci/beside $(WITH)
	@[ -z "$(SANDBOX)" ] || .ci/bootstrap $(SANDBOX)
	bin/fastiov up $(if $(SANDBOX),--sandbox $(SANDBOX)) $(if $(filter redis,$(WITH)),--store redis://127.0.0.1:6379) $(if $(filter registry,$(WITH)),$(addprefix --image-registries=,docker.io ghcr.io quay.io http://127.0.0.1:5000))
	bin/fastiov burst --n 7

build: ## Build bin/fastiov, bin/fastiov-init for its guests, bin/fastiov-vmm, which starts their VMMs, and bin/fastiov-cni, its CNI plugin
	@.ci/bootstrap run
	@CGO_ENABLED=0 go build -trimpath -ldflags '-X github.com/fastiov/fastiov/command.version=$(VERSION)' -o bin/fastiov ./cmd/fastiov
	@CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/fastiov-init ./node-agent/guest/init
	@CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/fastiov-vmm ./node-agent/sandbox/jail/vmm
	@CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/fastiov-cni ./cmd/fastiov-cni

load: build ## Fire a short burst by k6 at what `make up` started, and show its tail; builds k6 once, which takes some minutes
	@bin/fastiov k6 run load/burst.js

test: ## Compile, and run the test tiers within FASTIOV_CI_BUDGET minutes (80); ONLY="TIER…" runs some
	@.ci/bootstrap test
	@.ci/tiers $(foreach tier,$(ONLY),'$(tier)')

# lint compiles as build does, so that each finds in Go's cache what the other compiled.
lint: ## Check formatting, vet, staticcheck and the shell scripts
	@.ci/bootstrap test
	@bad=$$(gofmt -l $$(find . -name '*.go' -not -path './.git/*')); [ -z "$$bad" ] || { echo "not formatted, run gofmt -w on:" $$bad; exit 1; }
	@go mod tidy -diff || { echo "go.mod is not tidy, run go mod tidy"; exit 1; }
	CGO_ENABLED=0 go vet -trimpath ./...
	CGO_ENABLED=0 go vet -trimpath -tags $(TAGS) $(TAGGED)
	CGO_ENABLED=0 GOFLAGS="$$(go env GOFLAGS) -trimpath" go tool staticcheck ./...
	CGO_ENABLED=0 GOFLAGS="$$(go env GOFLAGS) -trimpath" go tool staticcheck -tags $(TAGS) $(TAGGED)
	shellcheck $(SCRIPTS) $$(find .ci/tier .ci/tests -type f)

# generate makes the Go code of the node API, the dashboards, docs/metrics.md, docs/configuration.md,
# packaging/fastiov.yaml and what Knative's definitions say of its resources anew.
generate: ## Make generated Go code, dashboards and documents anew
	@protoc --plugin=protoc-gen-go=$$(go tool -n protoc-gen-go) --plugin=protoc-gen-go-grpc=$$(go tool -n protoc-gen-go-grpc) \
		--go_out=$(OUT) --go_opt=module=github.com/fastiov/fastiov --go-grpc_out=$(OUT) --go-grpc_opt=module=github.com/fastiov/fastiov \
		node-agent/api/node.proto node-agent/api/devices.proto
	@go run ./dashboards/generate $(OUT)
	@go run ./command/generate $(OUT)
	@go run ./invoker/knative/generate $$(go list -m -f '{{.Dir}}' knative.dev/serving) $(OUT)/invoker/knative/resources.json

kernel-bump: ## Apply the kernel's patches to the newest 6.12 that the mirror has, and pin that in versions.yaml if all apply
	@.ci/bootstrap run
	@go run ./kernel-mod/bump

clean-cache: ## Remove what was built or downloaded into the cache
	rm -rf -- "$${FASTIOV_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/fastiov}"

clean: ## Remove bin
	rm -rf bin
