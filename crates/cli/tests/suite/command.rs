//! The command as a whole: its list of commands, completions, manual pages, and the answers to
//! commands that have another form by now.

use crate::common;

use common::said;
use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output, Stdio};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_onewrite")).args(args).output().unwrap()
}

fn done(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", said(&output));
    said(&output)
}

/// The commands that `--help` lists.
fn listed(args: &[&str]) -> BTreeSet<String> {
    let help = done(&[args, &["--help"]].concat());
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    commands
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_help_lists_commands_with_their_purpose() {
    let all = listed(&[]);
    for name in ["backup", "check", "completions", "man", "recover", "replicate", "research", "restore", "status"] {
        assert!(all.contains(name), "{name} is missing in {all:?}");
    }
    assert!(!all.contains("convert") && !all.contains("assets"), "{all:?}");
    assert_eq!(listed(&["research"]), BTreeSet::from(["convert".to_owned()]));
}

#[test]
fn help_has_the_options_of_every_command() {
    assert!(done(&["help", "replicate"]).contains("--snapshot-interval"));
    assert!(done(&["help", "recover"]).contains("--accept-loss"));
}

#[test]
fn completions_have_the_options_of_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = done(&["completions", shell]);
        for option in ["accept-loss", "snapshot-interval", "timestamp"] {
            assert!(script.contains(option), "{shell} does not offer --{option}");
        }
    }
    assert!(said(&run(&["completions", "dos"])).contains("bash"), "an error names the shells");
    let offers = "source /dev/stdin; COMP_WORDS=(onewrite replicate --); COMP_CWORD=2; _onewrite onewrite -- replicate; \
                  echo \" ${COMPREPLY[*]} \"";
    let Ok(mut bash) = Command::new("bash").args(["-c", offers]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
    else {
        return eprintln!("skipped: there is no bash");
    };
    std::io::copy(&mut done(&["completions", "bash"]).as_bytes(), &mut bash.stdin.take().unwrap()).unwrap();
    let offered = said(&bash.wait_with_output().unwrap());
    assert!(offered.contains(" --once ") && offered.contains(" --json "), "{offered}");
}

/// Sections of a page.
fn sections(page: &str) -> Vec<&str> {
    page.lines().filter_map(|line| line.strip_prefix(".SH ")).map(|name| name.trim_matches('"')).collect()
}

#[test]
fn every_command_has_a_manual_page_with_all_sections() {
    let dir = tempfile::tempdir().unwrap();
    let man = dir.path().join("man1");
    done(&["man", "--dir", man.to_str().unwrap()]);
    let pages: BTreeSet<String> =
        fs::read_dir(&man).unwrap().map(|page| page.unwrap().file_name().into_string().unwrap()).collect();
    let below =
        |args: &[&str], prefix: &str| listed(args).into_iter().map(move |name| format!("{prefix}-{name}.1")).collect();
    let mut expected: BTreeSet<String> = below(&[], "onewrite");
    expected.extend::<BTreeSet<_>>(below(&["research"], "onewrite-research"));
    #[cfg(feature = "bench")]
    expected.extend::<BTreeSet<_>>(below(&["bench"], "onewrite-bench"));
    expected.insert("onewrite.1".to_owned());
    assert_eq!(pages, expected);
    for name in &pages {
        let page = fs::read_to_string(man.join(name)).unwrap();
        let found = sections(&page);
        let last = ["EXIT STATUS", "FILES", "ENVIRONMENT", "SEE ALSO"];
        assert!(found.starts_with(&["NAME", "SYNOPSIS", "DESCRIPTION"]) && found.ends_with(&last), "{name}: {found:?}");
        let see = page.split(".SH \"SEE ALSO\"").nth(1).unwrap().replace('\\', "");
        for other in see.lines().filter_map(|line| line.strip_prefix("fB")?.split_once("fR").map(|(other, _)| other)) {
            let is_there = !other.starts_with("onewrite") || pages.contains(&format!("{other}.1"));
            assert!(is_there, "{name} names {other}, which has no page");
        }
        let words: Vec<&str> = name.trim_end_matches(".1").split('-').skip(1).collect();
        assert_eq!(done(&[&["man"], &words[..]].concat()), page, "{words:?}");
    }
    let page = fs::read_to_string(man.join("onewrite-replicate.1")).unwrap();
    assert!(page.contains("\\-\\-once") && page.contains("AWS_ACCESS_KEY_ID"), "{page}");
    let wrong = run(&["man", "chekc"]);
    assert!(wrong.status.code() == Some(1) && said(&wrong).contains("no command `onewrite chekc`"), "{}", said(&wrong));

    // The formatter has nothing to say against them.
    for name in &pages {
        let mut man_program = Command::new("man");
        man_program.args(["--warnings=w", "-E", "UTF-8", "-l"]).arg(man.join(name)).env("MANWIDTH", "80");
        let Ok(shown) = man_program.output() else { return eprintln!("skipped: there is no man") };
        let (text, warnings) = (String::from_utf8_lossy(&shown.stdout), String::from_utf8_lossy(&shown.stderr));
        assert!(shown.status.success() && warnings.is_empty() && text.contains("EXIT STATUS"), "{name}: {warnings}");
    }
}

#[test]
fn a_command_that_moved_names_the_new_one() {
    for (old, new) in [
        (&["convert", "my app.db", "--to", "plain"][..], "onewrite research convert 'my app.db' --to plain"),
        (&["assets", "out"], "onewrite man --dir out"),
    ] {
        let output = run(old);
        let said = said(&output);
        assert!(output.status.code() == Some(2) && said.contains(&format!("\n    {new}\n")), "{old:?}: {said}");
    }
    // Another word is a wrong one, and no old command.
    let output = run(&["convrt", "app.db"]);
    assert!(output.status.code() == Some(2) && said(&output).contains("unrecognized subcommand"), "{}", said(&output));
}

#[cfg(not(feature = "bench"))]
#[test]
fn without_bench_the_command_says_where_it_is() {
    let output = run(&["bench"]);
    assert!(
        output.status.code() == Some(2) && said(&output).contains("cargo run --release -- bench"),
        "{}",
        said(&output)
    );
}
