//go:build linux && amd64 && !musl

package onewrite

// #cgo LDFLAGS: ${SRCDIR}/lib/libonewrite_linux_amd64.a -lgcc_s -lpthread -ldl -lm
import "C"
