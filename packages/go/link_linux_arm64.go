//go:build linux && arm64 && !musl

package onewrite

// #cgo LDFLAGS: ${SRCDIR}/lib/libonewrite_linux_arm64.a -lgcc_s -lpthread -ldl -lm
import "C"
