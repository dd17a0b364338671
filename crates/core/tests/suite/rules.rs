//! The rules of `docs/commit.md` and the code: each rule is cited where the page says that it is kept, and tried by what
//! the page says; each citation in the code and in the other pages is of a rule that the page has, by its name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use onewrite_core::rules::Rule;

const PAGE: &str = "docs/commit.md";

/// A rule as the page tells it.
struct Entry {
    relation: String,
    /// Files that keep it.
    kept_in: Vec<String>,
    canary: bool,
    /// `FILE` or `FILE::FUNCTION`.
    tests: Vec<String>,
    /// Why nothing tries it.
    reason: Option<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The only name of one word.
const POISONS: &str = "Poisons";

/// Whether `word` could be the name of a rule: CamelCase of two words or more.
fn is_name(word: &str) -> bool {
    if word == POISONS {
        return true;
    }
    word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.chars().all(|c| c.is_ascii_alphanumeric())
        && word.as_bytes().windows(2).any(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase())
}

/// Whether `word` is one of the numbers that rules once had.
fn is_number(word: &str) -> bool {
    let digits = word.strip_prefix('P').unwrap_or(word);
    !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
}

/// What stands between backticks.
fn code(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The entries of the page: list items that begin with a name in bold, except the invariants.
fn entries() -> BTreeMap<String, Entry> {
    let page = fs::read_to_string(root().join(PAGE)).unwrap();
    let mut items: Vec<String> = Vec::new();
    let mut within = false;
    for line in page.lines() {
        if line.starts_with("- **") {
            items.push(line.to_owned());
            within = true;
        } else if within && line.starts_with("  ") {
            let item = items.last_mut().unwrap();
            item.push(' ');
            item.push_str(line.trim());
        } else {
            within = false;
        }
    }
    let mut entries = BTreeMap::new();
    for item in items {
        let (name, text) = item["- **".len()..].split_once("** ").unwrap_or_else(|| panic!("no name: {item}"));
        if name.len() == 2 && name.starts_with('I') {
            continue;
        }
        let (relation, fields) = text.rsplit_once(" — ").unwrap_or_else(|| panic!("{name}: where is it kept?"));
        let (kept_in, tried_by) = fields.split_once("; ").unwrap_or_else(|| panic!("{name}: what tries it?"));
        let reason = tried_by.strip_prefix("not tried: ").map(str::to_owned);
        let entry = Entry {
            relation: relation.to_owned(),
            kept_in: code(kept_in),
            canary: tried_by.split([',', '.', ':']).next() == Some("canary"),
            tests: if reason.is_some() { Vec::new() } else { code(tried_by) },
            reason,
        };
        assert!(entries.insert(name.to_owned(), entry).is_none(), "{name} is there twice");
    }
    assert!(entries.len() > 80, "{} rules were found", entries.len());
    entries
}

/// Files below `dir` with the extension.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The sources, by their paths in the repository.
fn sources() -> BTreeMap<String, String> {
    let root = root();
    let read = |path: &PathBuf| {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
        (name, fs::read_to_string(path).unwrap())
    };
    files(&root.join("crates"), "rs").iter().map(read).collect()
}

/// What is cited in `text` behind the word "rule" or "rules", and numbers where names should be. A citation may go on in
/// the next line of a comment.
fn citations(text: &str) -> (Vec<String>, Vec<String>) {
    let (mut names, mut numbers) = (Vec::new(), Vec::new());
    let bare = |line: &str| {
        let line = line.trim_start();
        line.trim_start_matches('/').trim_start_matches('!').trim_start().to_owned()
    };
    let lines: Vec<String> = text.lines().map(bare).collect();
    let mut words = lines.iter().flat_map(|line| line.split_whitespace()).peekable();
    while let Some(word) = words.next() {
        let word = word.trim_start_matches(['(', '[', '"', '*', '|']);
        if !matches!(word, "rule" | "rules" | "Rule" | "Rules") {
            // Those between processes were P1 to P9, also without that word before them.
            let word = word.trim_end_matches([')', ',', '.', ';', ':']);
            if word.len() == 2 && word.starts_with('P') && is_number(word) {
                numbers.push(word.to_owned());
            }
            continue;
        }
        // Names follow each other with a comma or "and", or a remark of one word as in "NewSession (two), LogWiped".
        let mut goes_on = true;
        while let Some(next) = words.peek().copied().filter(|_| goes_on) {
            let remark = next.strip_prefix('(').and_then(|next| next.trim_end_matches(',').strip_suffix(')'));
            let remark = !names.is_empty() && remark.is_some_and(|remark| !is_number(remark));
            let name = next.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
            let rest = &next[name.len()..];
            if is_name(name) {
                names.push(name.to_owned());
            } else if is_number(name) {
                numbers.push(format!("{word} {name}"));
            } else if !remark {
                break;
            }
            words.next();
            goes_on = if remark { next.ends_with(',') } else { rest == "," };
            goes_on |= rest.is_empty() && words.peek().is_some_and(|next| next.starts_with('('));
            goes_on |= (rest.is_empty() || rest == "," || remark) && words.next_if_eq(&"and").is_some();
        }
    }
    (names, numbers)
}

/// The rules that a source cites, in a comment or by keeping them.
fn cited(text: &str) -> BTreeSet<String> {
    let kept = text.split("Rule::").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        rest[..end].to_owned()
    });
    citations(text).0.into_iter().chain(kept).collect()
}

fn none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn citations_are_found() {
    let (names, numbers) = citations(
        "/// Rule MarkStays: one (rules NewSession, LogWiped and\n/// SlotTold). \"rule SizeLast: x\" rules\n// SizeHome \
         (two), RecordChain and SlotsAgree, and rule of thumb",
    );
    let expected =
        ["MarkStays", "NewSession", "LogWiped", "SlotTold", "SizeLast", "SizeHome", "RecordChain", "SlotsAgree"];
    assert_eq!(names, expected);
    assert!(numbers.is_empty(), "{numbers:?}");
    let (names, numbers) = citations("(rule 75) rules 45 and 51, (P3), as in P4: rule\n    /// 77. MAX_P9 P10");
    assert!(names.is_empty(), "{names:?}");
    assert_eq!(numbers, ["rule 75", "rules 45", "rules 51", "P3", "P4", "rule 77"]);
}

#[test]
fn each_rule_says_what_it_prevents() {
    let lacks = |(name, entry): (&String, &Entry)| {
        let (relation, prevents) = entry.relation.split_once("*Prevents* ").unwrap_or_default();
        (!is_name(name) || relation.len() < 20 || prevents.len() < 10)
            .then(|| format!("{name}: its relation, *Prevents* and what"))
    };
    none(entries().iter().filter_map(lacks).collect());
}

#[test]
fn each_rule_is_cited_where_it_is_kept() {
    let (entries, sources) = (entries(), sources());
    let all_cited: BTreeMap<&String, BTreeSet<String>> =
        sources.iter().map(|(file, text)| (file, cited(text))).collect();
    let mut complaints = Vec::new();
    for (name, entry) in &entries {
        if entry.kept_in.is_empty() {
            complaints.push(format!("{name}: no file keeps it"));
        }
        let path = |file: &String| match file.starts_with("crates/") {
            true => file.clone(),
            false => format!("crates/core/src/{file}"),
        };
        let kept_in: BTreeSet<String> = entry.kept_in.iter().map(path).collect();
        for file in &kept_in {
            match all_cited.get(file) {
                None => complaints.push(format!("{name}: there is no {file}")),
                Some(cited) if !cited.contains(name) => complaints.push(format!("{name}: {file} does not cite it")),
                Some(_) => {}
            }
        }
        for (file, text) in &sources {
            if text.contains(&format!("keeps(Rule::{name})")) && !kept_in.contains(file) {
                complaints.push(format!("{name}: {file} keeps it, too"));
            }
        }
    }
    none(complaints);
}

#[test]
fn each_rule_has_a_canary_or_a_test_or_a_reason() {
    let (entries, sources) = (entries(), sources());
    let canaries: BTreeSet<String> = Rule::ALL.iter().map(|rule| format!("{rule:?}")).collect();
    let mut complaints: Vec<String> = canaries
        .iter()
        .filter(|name| !entries.contains_key(*name))
        .map(|name| format!("{PAGE} lacks {name}"))
        .collect();
    for (name, entry) in &entries {
        match (entry.canary, canaries.contains(name)) {
            (true, false) => complaints.push(format!("{name}: `Rule` has no such canary")),
            (false, true) => complaints.push(format!("{name}: it has a canary, and does not say so")),
            _ => {}
        }
        let reason = entry.reason.as_deref().unwrap_or_default();
        if !entry.canary && entry.tests.is_empty() && reason.len() < 10 {
            complaints.push(format!("{name}: neither a canary nor a test nor a reason"));
        }
        for test in &entry.tests {
            let (file, function) = test.split_once("::").unwrap_or((test, ""));
            match sources.get(&format!("crates/{file}")) {
                None => complaints.push(format!("{name}: there is no crates/{file}")),
                Some(text) if !text.contains("#[test]") => complaints.push(format!("{name}: {file} has no test")),
                Some(text) if !function.is_empty() && !text.contains(&format!("fn {function}()")) => {
                    complaints.push(format!("{name}: {file} has no {function}"));
                }
                Some(_) => {}
            }
        }
    }
    none(complaints);
}

#[test]
fn each_citation_is_of_a_rule_by_its_name() {
    let (entries, root) = (entries(), root());
    let mut texts: Vec<(String, String)> = sources().into_iter().collect();
    let pages = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|e| e == "md"));
    for path in pages.chain(files(&root.join("docs"), "md")).chain(files(&root.join("fuzz/fuzz_targets"), "rs")) {
        texts.push((path.strip_prefix(&root).unwrap().display().to_string(), fs::read_to_string(&path).unwrap()));
    }
    let mut complaints = Vec::new();
    let mut count = 0;
    // Not this file, which has citations to be found.
    for (file, text) in texts.iter().filter(|(file, _)| file != "crates/core/tests/suite/rules.rs") {
        let (names, numbers) = citations(text);
        count += names.len();
        complaints.extend(numbers.iter().map(|number| format!("{file}: {number} has a name")));
        let unknown = names.iter().filter(|name| !entries.contains_key(*name));
        complaints.extend(unknown.map(|name| format!("{file}: {PAGE} has no rule {name}")));
    }
    none(complaints);
    assert!(count > 100, "{count} citations were found");
}
