//! The folders of a crate are layers: each imports only from folders before it. Method calls are
//! not seen. Tests may import from anywhere.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

struct Tree {
    root: &'static str,
    /// In the order of imports. An imported file beside `lib.rs` is a layer of its own.
    layers: &'static [&'static str],
    page: &'static str,
}

const CORE: Tree = Tree {
    root: "crates/core/src",
    page: "ARCHITECTURE.md",
    layers: &[
        "base",
        "disk",
        "sqlite_format",
        "log",
        "shared",
        "pages",
        "database",
        "checkpoint",
        "processes",
        "pairing",
        "session",
        "commit",
        "recovery",
        "research",
        "connection",
    ],
};

const VFS: Tree = Tree {
    root: "crates/vfs/src",
    page: "crates/vfs/src/lib.rs",
    layers: &["process", "sqlite", "host", "settings", "database", "controls", "callbacks", "sql", "register"],
};

const BENCH: Tree = Tree {
    root: "crates/bench/src",
    page: "crates/bench/src/lib.rs",
    layers: &[
        "text",
        "progress",
        "numbers",
        "host",
        "counting",
        "engines",
        "workload",
        "parameters",
        "report",
        "runner",
        "html",
        "files",
        "suites",
        "commands",
    ],
};

const TREES: [&Tree; 3] = [&CORE, &VFS, &BENCH];

/// One that is no layer imports from everywhere, and no layer imports it.
const LOOSE_MAX: usize = 4;

const ROOTS: [&str; 2] = ["lib.rs", "main.rs"];

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn sources(root: &Path, dir: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "tests" {
            sources(root, &path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" && !name.ends_with("_tests.rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned(), text);
        }
    }
}

fn code(text: &str) -> String {
    let mut kept = String::new();
    let (mut for_tests, mut in_tests) = (false, false);
    for line in text.lines() {
        if line == "#[cfg(test)]" {
            for_tests = true;
        } else if for_tests && !line.starts_with("#[") {
            for_tests = false;
            let item = line.strip_prefix("pub").map_or(line, |rest| rest.trim_start_matches("(crate)").trim_start());
            in_tests = item.starts_with("mod ") && line.ends_with('{');
        }
        if !in_tests {
            kept.push_str(line.split("//").next().unwrap());
            kept.push('\n');
        }
        in_tests &= line != "}";
    }
    kept
}

fn is_in_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Macros are left out.
fn read_tree<'a>(text: &'a str, before: &[&'a str], paths: &mut Vec<Vec<&'a str>>) -> &'a str {
    let (mut path, mut rest) = (before.to_vec(), text.trim_start());
    loop {
        if let Some(mut inner) = rest.strip_prefix('{') {
            loop {
                inner = inner.trim_start_matches(|c: char| c == ',' || c.is_whitespace());
                if inner.is_empty() || inner.starts_with('}') {
                    return inner.get(1..).unwrap_or_default();
                }
                let next = read_tree(inner, &path, paths);
                // At most `as` and another name.
                inner = next.find([',', '}']).map_or("", |end| &next[end..]);
            }
        }
        let len = if rest.starts_with('*') { 1 } else { rest.find(|c| !is_in_name(c)).unwrap_or(rest.len()) };
        path.push(&rest[..len]);
        rest = &rest[len..];
        match rest.strip_prefix("::") {
            Some(next) if len > 0 => rest = next.trim_start(),
            _ => break,
        }
    }
    if !rest.starts_with('!') {
        paths.push(path);
    }
    rest
}

fn paths(code: &str) -> Vec<Vec<&str>> {
    let mut found = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if !before.is_some_and(|c| is_in_name(c) || c == ':' || c == '$') {
                read_tree(&code[at..], &[], &mut found);
            }
        }
    }
    found
}

/// `None` within the layer.
fn target<'a>(name: &'a str, path: &[&'a str]) -> Option<&'a str> {
    let mut from: Vec<&str> = name.trim_end_matches(".rs").trim_end_matches("/mod").split('/').collect();
    let own = from[0];
    let mut rest = path;
    if let Some(("crate", behind)) = rest.split_first().map(|(first, behind)| (*first, behind)) {
        (from, rest) = (Vec::new(), behind);
    }
    while rest.first() == Some(&"super") {
        from.pop();
        rest = &rest[1..];
    }
    let layer = from.first().or(rest.first()).copied()?;
    (layer != own).then_some(layer)
}

fn complaints(tree: &Tree, sources: &BTreeMap<String, String>) -> Vec<String> {
    let Tree { root, layers, .. } = tree;
    let rank = |layer: &str| layers.iter().position(|name| *name == layer);
    let layer_of = |name: &str| name.split('/').next().unwrap().trim_end_matches(".rs").to_owned();
    let mut complaints = Vec::new();
    let lacks = |layer: &&&str| !sources.keys().any(|name| layer_of(name) == ***layer);
    complaints.extend(layers.iter().filter(lacks).map(|layer| format!("{root} has no {layer}")));
    let loose = |name: &&String| !name.contains('/') && !ROOTS.contains(&name.as_str());
    if sources.keys().filter(loose).count() > LOOSE_MAX {
        complaints.push(format!("{root}: more than {LOOSE_MAX} files stand beside the root of the crate"));
    }
    for (name, text) in sources {
        let Some(own) = rank(&layer_of(name)) else {
            if name.contains('/') {
                complaints.push(format!("{root}/{name} stands in a folder that is not in the list of layers"));
            }
            continue;
        };
        let code = code(text);
        for path in paths(&code) {
            let Some(layer) = target(name, &path) else { continue };
            let import = path.join("::");
            match rank(layer) {
                Some(other) if other < own => {}
                Some(_) => complaints.push(format!("{root}/{name} imports {import}, from a folder above its own")),
                None => complaints.push(format!("{root}/{name} imports {import}, which no folder in the list has")),
            }
        }
    }
    complaints.sort();
    complaints.dedup();
    complaints
}

/// A page has the table below the title with the path `root`, a source in its first comment. A row
/// may have several folders.
fn told_layers(page: &str, root: &str) -> Vec<String> {
    let comment: Vec<&str> = page.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim_start).collect();
    let title = |line: &&str| line.starts_with('#') && line.contains(&format!("`{root}`"));
    let lines = match comment.is_empty() {
        true => {
            page.lines().skip_while(|line| !title(line)).skip(1).take_while(|line| !line.starts_with('#')).collect()
        }
        false => comment,
    };
    let rows = lines.into_iter().filter(|line| line.starts_with("| `")).filter_map(|line| line.split('|').nth(1));
    let names = rows.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names.map(|name| name.trim_end_matches('/').to_owned()).collect()
}

#[test]
fn imports_lead_downward() {
    let mut all = Vec::new();
    for tree in &TREES {
        let root = repository().join(tree.root);
        let mut found = BTreeMap::new();
        sources(&root, &root, &mut found);
        all.extend(complaints(tree, &found));
    }
    assert!(all.is_empty(), "\n{}", all.join("\n"));
}

#[test]
fn the_pages_have_the_same_layers() {
    for tree in &TREES {
        let page = fs::read_to_string(repository().join(tree.page)).unwrap();
        assert_eq!(told_layers(&page, tree.root), tree.layers, "{}", tree.root);
    }
}

#[test]
fn an_import_upward_is_found() {
    let tree = Tree { root: "src", page: "", layers: &["low", "middle", "high"] };
    let check = |name: &str, text: &str| {
        let files = [("low/mod.rs", ""), ("middle/mod.rs", ""), ("high/mod.rs", ""), ("lib.rs", ""), (name, text)];
        complaints(&tree, &files.map(|(name, text)| (name.to_owned(), text.to_owned())).into())
    };
    for sound in [
        "use crate::low::a;",
        "use crate::{low::a, middle::{b, self as c}};",
        "use super::b;",
        "use super::super::low;",
        "// crate::high",
        "crate::low::f(); crate::mac!(1); $crate::high::x;",
        "#[cfg(test)]\n#[allow(x)]\nmod tests {\n    use crate::high::a;\n}\n",
        "#[cfg(test)]\npub mod tests {\n    use crate::high::a;\n}\n",
        "#[cfg(test)]\npub(crate) mod tests {\n    use crate::high::a;\n}\n",
    ] {
        assert!(check("middle/a.rs", sound).is_empty(), "{sound}: {:?}", check("middle/a.rs", sound));
        assert!(check("lib.rs", sound).is_empty(), "{sound}");
    }
    for bad in [
        "use crate::high::a;",
        "pub use crate::{low::a, middle::{b as c, d}, high};",
        "use crate::{\n    low::{a as b, c},\n    high::d,\n};",
        "use super::super::high::a;",
        "let a = Some(crate::high::f());",
        "fn f() {}\n#[cfg(test)]\nmod tests {\n}\nuse crate::high::a;",
        "use crate::Name;",
        "use crate::other::a;",
    ] {
        assert_eq!(check("middle/a.rs", bad).len(), 1, "{bad}: {:?}", check("middle/a.rs", bad));
    }
    assert_eq!(check("middle/mod.rs", "use super::high::a;").len(), 1);
    assert_eq!(check("unknown/a.rs", "").len(), 1);
    let mut many: BTreeMap<String, String> =
        ["low", "middle", "high"].map(|layer| (format!("{layer}/a.rs"), "".into())).into();
    many.extend((0..LOOSE_MAX).map(|n| (format!("{n}.rs"), String::new())));
    assert!(complaints(&tree, &many).is_empty());
    many.insert("one_more.rs".into(), String::new());
    assert_eq!(complaints(&tree, &many).len(), 1);
    many.retain(|name, _| !name.starts_with("high") && name != "one_more.rs");
    assert_eq!(complaints(&tree, &many), ["src has no high"]);
}
