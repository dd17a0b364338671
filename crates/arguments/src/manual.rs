//! Manual pages: the text of `--help`, and sections on exit status, files, environment and other
//! pages.

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};

use crate::notes::notes;

/// The page of the command that `words` name below `program`, in roff; `None` if there is no such
/// command.
pub fn page(program: &Command, words: &[String]) -> io::Result<Option<String>> {
    let mut program = program.clone();
    program.build();
    let mut command = &program;
    for word in words {
        match shown(command).find(|one| one.get_name() == word) {
            Some(found) => command = found,
            None => return Ok(None),
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    render(&program, command, &words).map(Some)
}

/// Writes all pages into `dir`, each as `onewrite-COMMAND.1`, and returns how many there are.
pub fn write(program: &Command, dir: &Path) -> io::Result<usize> {
    let mut program = program.clone();
    program.build();
    write_below(&program, &program, &[], dir)
}

fn write_below(program: &Command, command: &Command, words: &[&str], dir: &Path) -> io::Result<usize> {
    fs::write(dir.join(format!("{}.1", name(program, words))), render(program, command, words)?)?;
    let mut pages = 1;
    for one in shown(command) {
        pages += write_below(program, one, &[words, &[one.get_name()]].concat(), dir)?;
    }
    Ok(pages)
}

/// The commands below `command` that have a page.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help")
}

fn name(program: &Command, words: &[&str]) -> String {
    [&[program.get_name()], words].concat().join("-")
}

fn render(program: &Command, command: &Command, words: &[&str]) -> io::Result<String> {
    let title = name(program, words);
    let version = program.get_version().unwrap_or_default();
    let described = command.clone().display_name(title.clone()).disable_help_subcommand(true);
    let page = Man::new(described).title(title).source(format!("{} {version}", program.get_name())).manual("onewrite");
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    text.extend(description(command).into_bytes());
    if command.get_arguments().any(|one| !one.is_hide_set()) {
        page.render_options_section(&mut text)?;
    }
    if shown(command).next().is_some() {
        page.render_subcommands_section(&mut text)?;
    }
    let mut text = String::from_utf8_lossy(&text).into_owned();
    text += &sections(program, words);
    Ok(text)
}

/// The description, in which lines that are indented stay as they are.
fn description(command: &Command) -> String {
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let mut roff = Roff::new();
    roff.control("SH", ["DESCRIPTION"]);
    let mut is_kept = false;
    for line in about.lines() {
        let kept = line.strip_prefix("    ");
        if kept.is_some() != is_kept && !line.is_empty() {
            is_kept = kept.is_some();
            roff.control(if is_kept { "EX" } else { "EE" }, []);
        }
        match kept {
            Some(kept) => roff.text([roman(format!("  {kept}"))]),
            None if line.is_empty() && !is_kept => roff.control("PP", []),
            None => roff.text([roman(line)]),
        };
    }
    if is_kept {
        roff.control("EE", []);
    }
    roff.to_roff()
}

fn sections(program: &Command, words: &[&str]) -> String {
    let notes = notes(words);
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for (status, meaning) in notes.status {
        roff.control("TP", []).text([bold(status)]).text([roman(meaning)]);
    }
    roff.control("SH", ["FILES"]);
    for (file, meaning) in notes.files {
        roff.control("TP", []).text([italic(file)]).text([roman(meaning)]);
    }
    roff.control("SH", ["ENVIRONMENT"]);
    for (variable, meaning) in notes.environment {
        roff.control("TP", []).text([bold(variable)]).text([roman(meaning)]);
    }
    roff.control("SH", ["SEE ALSO"]);
    let mut pages: Vec<(String, &str)> = vec![];
    if !words.is_empty() {
        pages.push((program.get_name().to_owned(), "(1)"));
    }
    pages.extend(notes.see_also.iter().map(|other| (name(program, &other.split(' ').collect::<Vec<_>>()), "(1)")));
    pages.extend(notes.others.iter().map(|other| ((*other).to_owned(), "(1)")));
    let last = pages.len().saturating_sub(1);
    for (n, (page, section)) in pages.iter().enumerate() {
        roff.text([bold(page.as_str()), roman(if n == last { format!("{section}.") } else { format!("{section},") })]);
    }
    roff.to_roff()
}
