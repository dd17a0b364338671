//go:build linux && amd64 && musl

package onewrite

// #cgo LDFLAGS: ${SRCDIR}/lib/libonewrite_linux_amd64_musl.a -lgcc_eh -lpthread -ldl -lm
import "C"
