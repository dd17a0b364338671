//! The rules of `docs/commit.md` and `docs/research.md` are few, in a fixed form, cited where they
//! are kept, and tried. Each canary is a case of one; each citation names one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use onewrite_core::rules::Case;

const PAGE: &str = "docs/commit.md";
const RESEARCH: &str = "docs/research.md";

const MAX_RULES: usize = 40;
const MAX_WORDS: usize = 60;
const MAX_LINES: usize = 450;
/// Rows of tables cannot be wrapped.
const MAX_COLUMNS: usize = 160;

const FIELDS: [&str; 3] = ["*Prevents* ", "*Kept by* ", "*Tried by* "];

struct Entry {
    page: &'static str,
    name: String,
    /// A row has its cells here, a rule its [`FIELDS`] after the relation.
    fields: Vec<String>,
    cases: Vec<String>,
    is_row: bool,
    words: usize,
}

impl Entry {
    fn canaries(&self) -> Vec<String> {
        let names = self.cases.iter().flat_map(|case| match self.is_row {
            true => code(case),
            false => {
                case.split(". ").filter_map(|part| code(part).into_iter().next().filter(|_| is_named(part))).collect()
            }
        });
        names.filter(|name| is_name(name)).collect()
    }

    fn tests(&self) -> Vec<String> {
        let texts = self.fields.last().into_iter().chain(&self.cases);
        texts.flat_map(|text| code(text)).filter(|word| word.contains(".rs")).collect()
    }
}

fn is_named(case: &str) -> bool {
    case.strip_prefix('`').and_then(|rest| rest.split_once('`')).is_some_and(|(_, rest)| rest.starts_with(':'))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The only name of one word.
const POISONS: &str = "Poisons";

/// CamelCase of two words or more, of a rule or case.
fn is_name(word: &str) -> bool {
    if word == POISONS {
        return true;
    }
    word.starts_with(|c: char| c.is_ascii_uppercase())
        && word.chars().all(|c| c.is_ascii_alphanumeric())
        && word.as_bytes().windows(2).any(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase())
}

/// Rules once had numbers.
fn is_number(word: &str) -> bool {
    let digits = word.strip_prefix('P').unwrap_or(word);
    !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
}

fn code(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Rules are list items that begin with a bold name, except the invariants, or table rows that
/// begin so.
fn entries_of(page: &'static str) -> Vec<Entry> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let mut items: Vec<String> = Vec::new();
    let mut within = false;
    for line in text.lines() {
        if line.starts_with("- **") || line.starts_with("  - ") || line.starts_with("| **") {
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
    let mut entries: Vec<Entry> = Vec::new();
    for item in items {
        if let Some(case) = item.strip_prefix("  - ") {
            let rule = entries.last_mut().unwrap_or_else(|| panic!("{page}: a case without a rule: {item}"));
            rule.cases.push(case.to_owned());
            continue;
        }
        let is_row = item.starts_with('|');
        let (name, text) = item[4..].split_once("**").unwrap_or_else(|| panic!("{page}: no name: {item}"));
        let mut entry = Entry { page, name: name.to_owned(), fields: Vec::new(), cases: Vec::new(), is_row, words: 0 };
        if is_row && is_name(name) {
            entry.fields = text.trim_matches(['|', ' ']).split(" | ").map(str::to_owned).collect();
            entry.cases.extend(entry.fields.last().cloned());
            entries.push(entry);
        } else if !is_row && !is_number(&name.replace('I', "P")) {
            entry.words = item.split_whitespace().count() - 1;
            let mut rest = text.trim();
            for field in FIELDS {
                let (before, after) = rest.split_once(field).unwrap_or_else(|| panic!("{page}: {name} lacks {field}"));
                entry.fields.push(before.trim().to_owned());
                rest = after;
            }
            entry.fields.push(rest.to_owned());
            entries.push(entry);
        }
    }
    entries
}

fn entries() -> Vec<Entry> {
    let mut entries = entries_of(PAGE);
    entries.extend(entries_of(RESEARCH));
    let names: BTreeSet<&String> = entries.iter().map(|entry| &entry.name).collect();
    assert_eq!(names.len(), entries.len(), "a name is there twice");
    assert!(names.len() > 30, "{} rules were found", names.len());
    entries
}

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

/// This file has sample citations and is left out.
fn sources() -> BTreeMap<String, String> {
    let crates = root().join("crates");
    let read = |path: &PathBuf| {
        let name = path.strip_prefix(&crates).unwrap().to_str().unwrap().replace('\\', "/");
        (name, fs::read_to_string(path).unwrap())
    };
    let mut sources: BTreeMap<String, String> = files(&crates, "rs").iter().map(read).collect();
    assert!(sources.remove("core/tests/suite/rules.rs").is_some());
    sources
}

/// Names after "rule" or "rules", also in the next comment line, and numbers in place of names.
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
            // P1 to P9, also without that word.
            let word = word.trim_end_matches([')', ',', '.', ';', ':']);
            if word.len() == 2 && word.starts_with('P') && is_number(word) {
                numbers.push(word.to_owned());
            }
            continue;
        }
        // After a comma, "and", or a remark as in "HomeFitsLog (two), Poisons".
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

fn kept_cases(text: &str) -> BTreeSet<String> {
    let kept = text.split("keeps(Case::").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        rest[..end].to_owned()
    });
    kept.collect()
}

fn cited(text: &str) -> BTreeSet<String> {
    let kept = kept_cases(text);
    let rules = Case::ALL.iter().filter(|case| kept.contains(&format!("{case:?}"))).map(|case| case.rule().to_owned());
    citations(text).0.into_iter().chain(rules).collect()
}

fn has(file: &str, text: &str, item: &str) -> bool {
    let (before, name) = item.rsplit_once("::").unwrap_or_else(|| panic!("{item}: of which module?"));
    let path = file.trim_end_matches(".rs");
    let is_within = |part: &str| path.split('/').any(|folder| folder == part);
    let is_function = [format!("fn {name}("), format!("fn {name}<")].iter().any(|head| text.contains(head));
    let is_type = before.starts_with(|c: char| c.is_ascii_uppercase());
    let is_module = [format!("/{name}"), format!("/{name}/mod")].iter().any(|end| path.ends_with(end.as_str()));
    match is_type {
        true => is_function && text.contains(before),
        false => is_within(before) && (is_function || is_module),
    }
}

fn none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn citations_are_found() {
    let (names, numbers) = citations(
        "/// Rule MarkWhileNeeded: one (rules OneWriter, Poisons and\n/// HomeFitsLog). \"rule SizeLast: x\" rules\n// \
         SizeHome (two), RecordChain and SlotsAgree, and rule of thumb",
    );
    let expected =
        ["MarkWhileNeeded", "OneWriter", "Poisons", "HomeFitsLog", "SizeLast", "SizeHome", "RecordChain", "SlotsAgree"];
    assert_eq!(names, expected);
    assert!(numbers.is_empty(), "{numbers:?}");
    let (names, numbers) = citations("(rule 75) rules 45 and 51, (P3), as in P4: rule\n    /// 77. MAX_P9 P10");
    assert!(names.is_empty(), "{names:?}");
    assert_eq!(numbers, ["rule 75", "rules 45", "rules 51", "P3", "P4", "rule 77"]);
}

#[test]
fn the_page_is_short() {
    let entries = entries();
    let count = entries.iter().filter(|entry| entry.page == PAGE).count();
    let mut complaints = Vec::new();
    if count > MAX_RULES {
        complaints.push(format!("{PAGE}: {count} rules and rows, more than {MAX_RULES}"));
    }
    let long = entries.iter().filter(|entry| entry.words > MAX_WORDS);
    complaints.extend(long.map(|entry| format!("{}: {} words, more than {MAX_WORDS}", entry.name, entry.words)));
    let text = fs::read_to_string(root().join(PAGE)).unwrap();
    let lines = text.lines().count();
    if lines > MAX_LINES {
        complaints.push(format!("{PAGE}: {lines} lines, more than {MAX_LINES}"));
    }
    let wide = text.lines().zip(1..).filter(|(line, _)| !line.starts_with('|') && line.chars().count() > MAX_COLUMNS);
    complaints.extend(wide.map(|(_, n)| format!("{PAGE}:{n}: more than {MAX_COLUMNS} columns")));
    none(complaints);
}

#[test]
fn each_rule_has_its_form() {
    let entries = entries();
    let rules: BTreeSet<&str> = entries.iter().filter(|entry| !entry.is_row).map(|entry| entry.name.as_str()).collect();
    let mut complaints = Vec::new();
    for entry in &entries {
        let name = &entry.name;
        if !is_name(name) {
            complaints.push(format!("{name}: no CamelCase of two words"));
        }
        if entry.is_row {
            let [left_out, why, weakens, tried] = entry.fields.as_slice() else {
                complaints.push(format!("{name}: {} cells", entry.fields.len() + 1));
                continue;
            };
            if left_out.len() < 20 || why.len() < 20 || tried.len() < 20 {
                complaints.push(format!("{name}: an empty cell"));
            }
            let unknown = weakens.split(", ").filter(|rule| !rules.contains(rule));
            complaints.extend(unknown.map(|rule| format!("{name}: it cannot weaken {rule}")));
        } else if entry.fields[0].len() < 20 || entry.fields[1].len() < 10 {
            complaints.push(format!("{name}: its relation, and what it prevents"));
        }
    }
    none(complaints);
}

#[test]
fn each_rule_is_cited_where_it_is_kept() {
    let sources = sources();
    let cited: BTreeMap<&String, BTreeSet<String>> = sources.iter().map(|(file, text)| (file, cited(text))).collect();
    let mut complaints = Vec::new();
    for entry in &entries() {
        let name = &entry.name;
        let code_cites = |file: &&String| !file.contains("/tests/") && cited[file].contains(name);
        if !sources.keys().any(|file| code_cites(&file)) {
            complaints.push(format!("{name}: no source cites it"));
        }
        let kept_by = if entry.is_row { Vec::new() } else { code(&entry.fields[2]) };
        if kept_by.is_empty() && !entry.is_row {
            complaints.push(format!("{name}: nothing keeps it"));
        }
        for item in kept_by {
            let with_it: Vec<&String> =
                sources.iter().filter(|(file, text)| has(file, text, &item)).map(|(file, _)| file).collect();
            if with_it.is_empty() {
                complaints.push(format!("{name}: there is no {item}"));
            } else if !with_it.iter().any(code_cites) {
                complaints.push(format!("{name}: {item} does not cite it ({with_it:?})"));
            }
        }
    }
    none(complaints);
}

#[test]
fn each_canary_is_a_case_of_one_rule() {
    let (entries, sources) = (entries(), sources());
    let mut complaints = Vec::new();
    let mut places: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for entry in &entries {
        for canary in entry.canaries() {
            places.entry(canary).or_default().push(&entry.name);
        }
        let says_canary = entry.fields.last().is_some_and(|tried| tried.starts_with("canar"));
        if !entry.is_row && says_canary == entry.canaries().is_empty() {
            complaints.push(format!("{}: *Tried by* a canary, and a case with its name, or neither", entry.name));
        }
    }
    let kept: BTreeSet<String> = sources.values().flat_map(|text| kept_cases(text)).collect();
    for case in Case::ALL {
        let name = format!("{case:?}");
        match places.remove(&name).as_deref() {
            Some([rule]) if *rule == case.rule() => {}
            Some(rules) => complaints.push(format!("{name} is a case of {}, not of {rules:?}", case.rule())),
            None => complaints.push(format!("{name} is a case of {}, which does not say so", case.rule())),
        }
        if !kept.contains(&name) {
            complaints.push(format!("{name}: nothing keeps it"));
        }
    }
    complaints.extend(places.keys().map(|name| format!("{name}: `Case` has no such canary")));
    none(complaints);
}

#[test]
fn each_rule_is_tried() {
    let sources = sources();
    let mut complaints = Vec::new();
    for entry in &entries() {
        let name = &entry.name;
        let tests = entry.tests();
        let said = entry.fields.last().unwrap();
        if entry.canaries().is_empty() && tests.is_empty() && !(entry.is_row && said.len() > 20) {
            complaints.push(format!("{name}: neither a canary nor a test"));
        }
        for test in &tests {
            let (file, function) = test.split_once("::").unwrap_or((test, ""));
            let is_it = |path: &str| match file.contains('/') {
                true => path == file,
                false => path.starts_with("core/src/") && path.rsplit('/').next() == Some(file),
            };
            let found: Vec<&String> = sources.iter().filter(|(path, _)| is_it(path)).map(|(_, text)| text).collect();
            if found.is_empty() {
                complaints.push(format!("{name}: there is no {file}"));
            } else if !found.iter().any(|text| text.contains("#[test]")) {
                complaints.push(format!("{name}: {file} has no test"));
            } else if !function.is_empty() && !found.iter().any(|text| text.contains(&format!("fn {function}()"))) {
                complaints.push(format!("{name}: {file} has no {function}"));
            }
        }
    }
    none(complaints);
}

#[test]
fn each_row_of_other_tools_names_a_test_that_is_there() {
    let page = fs::read_to_string(root().join("docs/living-together.md")).unwrap();
    let (sources, mut complaints, mut tool, mut count) = (sources(), Vec::new(), "", 0);
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            tool = heading;
        }
        let is_row = line.starts_with("| ") && !line.starts_with("| state |");
        if tool.is_empty() || !is_row {
            continue;
        }
        count += 1;
        let named = code(line.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default());
        let is_there = |named: &String| {
            let (file, function) = named.split_once("::")?;
            sources.get(file).filter(|text| text.contains(&format!("#[test]\nfn {function}()")))
        };
        if named.is_empty() || !named.iter().all(|named| is_there(named).is_some()) {
            complaints.push(format!("{tool}: no such test: {line}"));
        }
    }
    none(complaints);
    assert!(count > 30, "{count} rows were found");
}

#[test]
fn each_citation_is_of_a_rule_by_its_name() {
    let (entries, root) = (entries(), root());
    let rules: BTreeSet<&String> = entries.iter().map(|entry| &entry.name).collect();
    let mut texts: Vec<(String, String)> = sources().into_iter().collect();
    let pages = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|e| e == "md"));
    for path in pages.chain(files(&root.join("docs"), "md")).chain(files(&root.join("fuzz/fuzz_targets"), "rs")) {
        texts.push((path.strip_prefix(&root).unwrap().display().to_string(), fs::read_to_string(&path).unwrap()));
    }
    let mut complaints = Vec::new();
    let mut count = 0;
    for (file, text) in &texts {
        let (names, numbers) = citations(text);
        count += names.len();
        complaints.extend(numbers.iter().map(|number| format!("{file}: {number} has a name")));
        let unknown = names.iter().filter(|name| !rules.contains(*name));
        complaints.extend(unknown.map(|name| format!("{file}: no page has a rule {name}")));
    }
    none(complaints);
    assert!(count > 100, "{count} citations were found");
}
