//! The crates that an installation by cargo compiles, and the archive in which `cargo binstall`
//! finds the program.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The crates that an installation compiles.
fn compiled(args: &[&str]) -> Vec<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--offline", "--locked", "-p", "onewrite-cli", "-e", "normal,build", "--prefix", "none"]);
    let output = cargo.args(args).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// With its default features the command has `bench`, for the README's `cargo run --release --
/// bench`.
#[test]
fn without_bench_nothing_of_it_is_compiled() {
    let of_bench = ["onewrite-bench", "heed", "redb", "plotters", "fuser", "hdrhistogram"];
    let (with, without) = (compiled(&[]), compiled(&["--no-default-features"]));
    for name in of_bench {
        assert!(with.iter().any(|one| one == name), "{name} is missing");
        assert!(without.iter().all(|one| one != name), "{name} is compiled");
    }
    assert!(without.iter().any(|one| one == "onewrite-core"), "{without:?}");
}

/// The value of a key of `[package.metadata.binstall]`.
fn binstall(manifest: &str, key: &str) -> String {
    let section = manifest.split("[package.metadata.binstall]\n").nth(1).unwrap().split("\n[").next().unwrap();
    let line = section.lines().find_map(|line| line.strip_prefix(&format!("{key} = \""))).unwrap();
    line.trim_end_matches('"').to_owned()
}

/// The template as `cargo binstall` fills it in for a program on x86_64 with musl.
fn filled(template: &str, program: &str) -> String {
    let of = [
        ("repo", "https://example.org/onewrite"),
        ("version", "1.2.3"),
        ("target-arch", "x86_64"),
        ("target-libc", "musl"),
        ("bin", program),
    ];
    let text = of.iter().fold(template.to_owned(), |text, (name, value)| text.replace(&format!("{{ {name} }}"), value));
    assert!(!text.contains('{'), "{text}");
    text
}

/// The name of the archive for C, as `packages/build` composes it.
fn archive(build: &str) -> String {
    let line =
        build.lines().find_map(|line| line.trim().strip_prefix("local name=onewrite-$version-$(machine")).unwrap();
    let name = line.split_whitespace().take(4).collect::<Vec<_>>().join(" ");
    assert_eq!(name, "\"$1\" c)-linux-$(libc \"$1\") tree", "packages/build names the archive in another way");
    "onewrite-1.2.3-x86_64-linux-musl".to_owned()
}

#[test]
fn binstall_takes_the_archive_that_packages_build_makes() {
    let build = std::fs::read_to_string(root().join("packages/build")).unwrap();
    let archive = archive(&build);
    assert!(build.contains("-czf \"$dist/$name.tar.gz\" \"$name\""), "the archive has one folder of its name");
    for (folder, program) in [("cli", "onewrite"), ("replicate", "onewrite-replicate")] {
        let manifest = std::fs::read_to_string(root().join("crates").join(folder).join("Cargo.toml")).unwrap();
        let url = filled(&binstall(&manifest, "pkg-url"), program);
        assert_eq!(url, format!("https://example.org/onewrite/releases/download/v1.2.3/{archive}.tar.gz"));
        assert_eq!(filled(&binstall(&manifest, "bin-dir"), program), format!("{archive}/{program}"));
        assert_eq!(binstall(&manifest, "pkg-fmt"), "tgz");
        assert!(build.contains(&format!("$release/{program}\"")), "the archive has {program}");
    }
}
