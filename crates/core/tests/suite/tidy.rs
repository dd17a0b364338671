//! Names, lengths of functions and of comment lines, in the sources of the workspace. Commands in
//! comments and documents name tests that exist.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

const LIBRARIES: [&str; 5] = ["core", "vfs", "replicate", "bench", "rusqlite"];

/// It stands for `research.rs` in builds without that feature, and declares the same names.
const WITHOUT_RESEARCH: &str = "core/src/base/without_research.rs";

const SHORT: [&str; 10] = ["core", "vfs", "replicate", "bench", "rusqlite", "sim", "device", "kill", "cli", "entry"];

const MAX_LINES: usize = 70;

/// Columns of a comment line, with the spaces in front.
const MAX_COLUMNS: usize = 100;

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The Rust files below `dir`, by their paths from [`crates`].
fn files(dir: &Path, found: &mut BTreeMap<String, String>) {
    files_with("rs", dir, found);
}

fn files_with(wanted: &str, dir: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_with(wanted, &path, found);
        } else if path.extension().is_some_and(|extension| extension == wanted) {
            let name = path.strip_prefix(crates()).unwrap().to_str().unwrap().to_owned();
            found.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
}

fn sources(name: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    files(&crates().join(name).join("src"), &mut found);
    let for_tests: Vec<String> = found.iter().flat_map(|(path, text)| test_modules(path, text)).collect();
    found.retain(|path, _| !for_tests.iter().any(|module| path.starts_with(module.as_str())));
    found
}

fn test_modules(path: &str, text: &str) -> Vec<String> {
    let stem = path.trim_end_matches(".rs");
    let dir = match stem.rsplit_once('/').unwrap() {
        (dir, "lib" | "main" | "mod") => dir,
        _ => stem,
    };
    let modules = syn::parse_file(text).unwrap().items.into_iter().filter_map(|item| match item {
        syn::Item::Mod(item) if item.content.is_none() && is_for_tests(&item.attrs) => Some(item.ident),
        _ => None,
    });
    modules.flat_map(|name| [format!("{dir}/{name}.rs"), format!("{dir}/{name}/")]).collect()
}

/// Type names and functions of a file, each with its line.
#[derive(Default)]
struct Declarations {
    types: Vec<(String, usize)>,
    /// With the lines between its braces.
    functions: Vec<(String, usize, usize)>,
}

impl Declarations {
    fn of(text: &str) -> Self {
        let mut declarations = Self::default();
        declarations.visit_file(&syn::parse_file(text).unwrap());
        declarations
    }

    fn name(&mut self, attributes: &[syn::Attribute], name: &syn::Ident) {
        if !is_for_tests(attributes) {
            self.types.push((name.to_string(), name.span().start().line));
        }
    }

    fn function(&mut self, attributes: &[syn::Attribute], name: &syn::Ident, body: &syn::Block) -> bool {
        let lines = body.brace_token.span.close().start().line.saturating_sub(body.span().start().line + 1);
        if !is_for_tests(attributes) {
            self.functions.push((name.to_string(), name.span().start().line, lines));
        }
        !is_for_tests(attributes)
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        syn::Meta::NameValue(_) => false,
    })
}

impl<'ast> Visit<'ast> for Declarations {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.name(&item.attrs, &item.ident);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.name(&item.attrs, &item.ident);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.name(&item.attrs, &item.ident);
        visit::visit_item_union(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.name(&item.attrs, &item.ident);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.name(&item.attrs, &item.ident);
        visit::visit_item_type(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if self.function(&item.attrs, &item.sig.ident, &item.block) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if self.function(&item.attrs, &item.sig.ident, &item.block) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        let is_in = item.default.as_ref().is_none_or(|body| self.function(&item.attrs, &item.sig.ident, body));
        if is_in {
            visit::visit_trait_item_fn(self, item);
        }
    }
}

/// A system's own version of a type has its name.
fn twice(sources: &BTreeMap<String, String>) -> Vec<String> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in sources.iter().filter(|(path, _)| !path.contains("/windows/") && !path.ends_with("/windows.rs"))
    {
        for (name, line) in Declarations::of(text).types {
            places.entry(name).or_default().push(format!("{path}:{line}"));
        }
    }
    places.retain(|_, places| places.len() > 1);
    places.iter().map(|(name, places)| format!("{name}: {}", places.join(", "))).collect()
}

fn long_functions(sources: &BTreeMap<String, String>) -> Vec<String> {
    let mut long = Vec::new();
    for (path, text) in sources {
        let functions = Declarations::of(text).functions.into_iter().filter(|(_, _, lines)| *lines > MAX_LINES);
        long.extend(functions.map(|(name, line, lines)| format!("{path}:{line} {name} has {lines} lines")));
    }
    long
}

fn long_comments(sources: &BTreeMap<String, String>) -> Vec<String> {
    let mut long = Vec::new();
    for (path, text) in sources {
        let lines = text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("//"));
        let lines =
            lines.map(|(at, line)| (at + 1, line.chars().count())).filter(|(_, columns)| *columns > MAX_COLUMNS);
        long.extend(lines.map(|(line, columns)| format!("{path}:{line} has {columns} columns")));
    }
    long
}

/// Tests that `cargo test -p PACKAGE --test NAME` in a line of a text names, as paths from
/// [`crates`] without their ends.
fn tests_in_commands(text: &str) -> Vec<String> {
    let mut tests = Vec::new();
    for line in text.lines().filter(|line| line.contains("cargo test")) {
        let words: Vec<&str> = line.split([' ', '`']).collect();
        let behind = |option: &str| words.iter().position(|word| *word == option).and_then(|at| words.get(at + 1));
        if let (Some(package), Some(test)) = (behind("-p"), behind("--test")) {
            let name = if *package == "onewrite" { "vfs" } else { package.trim_start_matches("onewrite-") };
            tests.push(format!("{name}/tests/{test}"));
        }
    }
    tests
}

#[test]
fn commands_name_tests_that_exist() {
    let mut sources = BTreeMap::new();
    files(&crates(), &mut sources);
    files_with("md", &crates(), &mut sources);
    files_with("md", &crates().join("../docs"), &mut sources);
    let mut missing = Vec::new();
    for (path, text) in sources.iter().filter(|(path, _)| !path.ends_with("tidy.rs")) {
        let absent = |test: &String| !["", "/main"].iter().any(|end| crates().join(format!("{test}{end}.rs")).exists());
        missing.extend(tests_in_commands(text).into_iter().filter(absent).map(|test| format!("{path}: {test}")));
    }
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
}

#[test]
fn a_type_name_has_one_meaning() {
    let mut sources: BTreeMap<_, _> = LIBRARIES.iter().flat_map(|name| sources(name)).collect();
    assert!(sources.remove(WITHOUT_RESEARCH).is_some());
    let twice = twice(&sources);
    assert!(twice.is_empty(), "\n{}", twice.join("\n"));
}

#[test]
fn functions_are_short() {
    let sources = SHORT.iter().flat_map(|name| sources(name)).collect();
    let long = long_functions(&sources);
    assert!(long.is_empty(), "\n{}", long.join("\n"));
}

#[test]
fn comment_lines_are_short() {
    let mut sources = BTreeMap::new();
    files(&crates(), &mut sources);
    let long = long_comments(&sources);
    assert!(long.is_empty(), "\n{}", long.join("\n"));
}

#[test]
fn faults_are_found() {
    let check = |text: &str| BTreeMap::from([("a/src/lib.rs".to_owned(), text.to_owned())]);
    let body = |lines: usize| "    f();\n".repeat(lines);
    for bad in
        ["struct A;\nenum A {}\n", "trait A {}\nmod b {\n    type A = u8;\n}\n", "union A {}\nfn f() { struct A; }\n"]
    {
        assert_eq!(twice(&check(bad)).len(), 1, "{bad}");
    }
    for sound in [
        "struct A;\nimpl B for A {\n    type A = u8;\n}\n",
        "struct A;\n#[cfg(test)]\nmod tests {\n    struct A;\n}\n",
        "struct A;\n#[cfg(test)]\nstruct A(u8);\n",
    ] {
        assert!(twice(&check(sound)).is_empty(), "{sound}");
    }
    for head in ["fn f()", "impl A {\nfn f(\n    self,\n)", "trait A {\nfn f()", "mod b {\nfn f()"] {
        let end = if head.contains("{\n") { "}" } else { "" };
        let text = |lines: usize| format!("{head} {{\n{}}}\n{end}", body(lines));
        assert!(long_functions(&check(&text(MAX_LINES))).is_empty(), "{head}");
        assert_eq!(long_functions(&check(&text(MAX_LINES + 1))).len(), 1, "{head}");
    }
    assert!(long_functions(&check(&format!("#[test]\nfn f() {{\n{}}}", body(MAX_LINES + 1)))).is_empty());
    for start in ["// ", "    /// ", "//! "] {
        let text = |columns: usize| format!("{start}{}", "ä".repeat(columns - start.len()));
        assert!(long_comments(&check(&text(MAX_COLUMNS))).is_empty());
        assert_eq!(long_comments(&check(&text(MAX_COLUMNS + 1))).len(), 1);
    }
    let command = "`A=1 cargo test --release -p onewrite-core --test proof -- --ignored`";
    assert_eq!(tests_in_commands(command), ["core/tests/proof"]);
    assert_eq!(tests_in_commands("cargo test -p onewrite --test many"), ["vfs/tests/many"]);
    let text = "#[cfg(test)]\nmod a;\nmod b;\n#[cfg(test)]\n#[allow(x)]\npub mod c;\n";
    assert_eq!(test_modules("x/src/lib.rs", text), ["x/src/a.rs", "x/src/a/", "x/src/c.rs", "x/src/c/"]);
    assert_eq!(test_modules("x/src/y/mod.rs", "#[cfg(test)]\nmod a;")[0], "x/src/y/a.rs");
    assert_eq!(test_modules("x/src/y.rs", "#[cfg(test)]\nmod a;")[0], "x/src/y/a.rs");
}
