// Package api is the node API: the one thing that invoker and node-agent both see.
package api

//go:generate sh -c "protoc -I ../.. --go_out=../.. --go_opt=module=github.com/fastiov/fastiov --go-grpc_out=../.. --go-grpc_opt=module=github.com/fastiov/fastiov --plugin=protoc-gen-go=$(go tool -n protoc-gen-go) --plugin=protoc-gen-go-grpc=$(go tool -n protoc-gen-go-grpc) node-agent/api/node.proto"
