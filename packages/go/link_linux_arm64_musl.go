//go:build linux && arm64 && musl

package onewrite

// #cgo LDFLAGS: ${SRCDIR}/lib/libonewrite_linux_arm64_musl.a -lgcc_eh -lpthread -ldl -lm
import "C"
