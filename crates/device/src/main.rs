//! The command `onewrite-device`.

#[cfg(target_os = "linux")]
mod campaign;
#[cfg(target_os = "linux")]
mod command;
#[cfg(target_os = "linux")]
mod run;

fn main() -> std::process::ExitCode {
    #[cfg(target_os = "linux")]
    return command::run();
    #[cfg(not(target_os = "linux"))]
    {
        eprintln!("onewrite-device: {}", onewrite_device::unavailable().unwrap_or_default());
        std::process::ExitCode::FAILURE
    }
}
