//! Reads the sources and the documents, and holds what they promise: the direction of imports, one speller of keys, one clock, one source of
//! randomness, files that say what they are for and stay short, and documents whose links, paths and tests exist. Needs nothing but the
//! standard library and takes about a second.
//!
//! Code means a source without comments, without the contents of string literals, and without its inline `mod tests`. Files of tests
//! and benches, known by their names, are left out of the rules on code.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Lines of one file of code, comments included. Longer ones hold two things.
const LINES_MAX: usize = 700;

/// Files that may read a clock or wait on one, beside `host/clock.rs` and `host/report/`, and why.
const CLOCK_READERS: [(&str, &str); 4] = [
    ("host/policy/admission/mod.rs", "bounds an examination as a whole, which no simulation holds"),
    ("host/policy/compile.rs", "waits for a child process, outside of any runtime"),
    ("host/policy/runtime.rs", "moves the engine's epoch on, the deadline of a call"),
    ("host/bucket/create.rs", "pauses on tokio's clock, which a simulation moves"),
];

/// Files that spell keys, and why.
const KEY_SPELLERS: [(&str, &str); 2] = [
    ("host/bucket/key.rs", "makes and parses them"),
    ("host/sim/check.rs", "checks what a run left and trusts no code of the host for it"),
];

/// Folders whose code decides what the log says, and the one file there whose library wants a hash map.
const PROTOCOL: [&str; 5] = ["host/bucket/", "host/island/", "host/syncer/", "host/outer/", "host/sim/"];
const ARROW: &str = "host/bucket/payload.rs";

/// The documents at the root of the repository.
const DOCUMENTS: [&str; 5] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "EXPERIMENTS.md"];

/// A source file: its path from the root, and its text in three readings.
struct Source {
    path: String,
    text: String,
    /// Comments and the contents of literals are blanks; line ends stay.
    code: String,
    /// Contents of string literals, with the line that each begins on.
    literals: Vec<(usize, String)>,
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}; tests run at the root of the repository"))
}

/// All files below `folder` that end in `extension`, sorted; build output and hidden folders left out.
fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a directory entry").path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') || name == "target" {
            continue;
        }
        if path.is_dir() {
            files(&path, extension, found);
        } else if name.ends_with(extension) {
            found.push(path);
        }
    }
}

/// Every Rust source of the repository, read once for all tests.
fn sources() -> &'static [Source] {
    static SOURCES: OnceLock<Vec<Source>> = OnceLock::new();
    SOURCES.get_or_init(|| {
        let mut paths = Vec::new();
        for folder in ["host", "infra", "plugins", "tests"] {
            files(Path::new(folder), ".rs", &mut paths);
        }
        assert!(paths.len() > 50, "only {} sources; tests run at the root of the repository", paths.len());
        paths.iter().map(|path| source(&path.to_string_lossy())).collect()
    })
}

fn source(path: &str) -> Source {
    let text = read(path);
    let shipped = match text.find("\n#[cfg(test)]\nmod ") {
        Some(end) => &text[..end],
        None => &text[..],
    };
    let (code, literals) = blanked(shipped);
    Source { path: path.replace('\\', "/"), code, literals, text }
}

/// Whether a file is all tests or a bench, by its name.
fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs")
        || path.starts_with("tests/")
        || ["/tests/", "/benches/"].iter().any(|folder| path.contains(folder))
}

/// The code of the host, engine included.
fn host() -> impl Iterator<Item = &'static Source> {
    sources().iter().filter(|s| s.path.starts_with("host/") && !is_test(&s.path))
}

/// Blanks comments and the contents of literals, and collects the string literals.
fn blanked(text: &str) -> (String, Vec<(usize, String)>) {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let (mut code, mut literals) = (String::with_capacity(text.len()), Vec::new());
    let (mut i, mut line) = (0, 1);
    // Moves on by one; what is not code becomes a blank.
    let mut step = |i: &mut usize, keep: bool| {
        let c = at(*i);
        line += usize::from(c == '\n');
        code.push(if keep || c == '\n' { c } else { ' ' });
        *i += 1;
        line
    };
    while i < chars.len() {
        let before = if i == 0 { ' ' } else { at(i - 1) };
        let starts_word = !(before.is_alphanumeric() || before == '_');
        let hashes = (1..).take_while(|n| at(i + n) == '#').count();
        if at(i) == '/' && at(i + 1) == '/' {
            while i < chars.len() && at(i) != '\n' {
                step(&mut i, false);
            }
        } else if at(i) == '/' && at(i + 1) == '*' {
            let mut depth = 0;
            loop {
                let here = (at(i), at(i + 1));
                depth += i32::from(here == ('/', '*')) - i32::from(here == ('*', '/'));
                step(&mut i, false);
                if depth == 0 || i >= chars.len() {
                    break;
                }
            }
            step(&mut i, false);
        } else if at(i) == 'r' && starts_word && at(i + 1 + hashes) == '"' {
            let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
            let mut content = String::new();
            let mut begins = 0;
            for _ in 0..hashes + 2 {
                begins = step(&mut i, true);
            }
            while i < chars.len() && !chars[i..].starts_with(&end) {
                content.push(at(i));
                step(&mut i, false);
            }
            for _ in 0..end.len().min(chars.len() - i) {
                step(&mut i, true);
            }
            literals.push((begins, content));
        } else if at(i) == '"' {
            let begins = step(&mut i, true);
            let mut content = String::new();
            while i < chars.len() && at(i) != '"' {
                if at(i) == '\\' {
                    content.push(at(i));
                    step(&mut i, false);
                }
                content.push(at(i));
                step(&mut i, false);
            }
            step(&mut i, true);
            literals.push((begins, content));
        } else if at(i) == '\'' && (at(i + 1) == '\\' || at(i + 2) == '\'') {
            // A character, not a lifetime.
            step(&mut i, true);
            while i < chars.len() && at(i) != '\'' {
                if at(i) == '\\' {
                    step(&mut i, false);
                }
                step(&mut i, false);
            }
            step(&mut i, true);
        } else {
            step(&mut i, true);
        }
    }
    (code, literals)
}

/// Lines of `code` that hold `word`, not as part of a longer one.
fn lines_with(code: &str, word: &str) -> Vec<usize> {
    let joins = |c: char| c.is_alphanumeric() || c == '_';
    let holds = |line: &str| {
        line.match_indices(word)
            .any(|(start, _)| !line[..start].ends_with(joins) && !line[start + word.len()..].starts_with(joins))
    };
    code.lines().enumerate().filter(|(_, line)| holds(line)).map(|(index, _)| index + 1).collect()
}

fn hold(problems: &[String]) {
    assert!(problems.is_empty(), "\n  {}\n", problems.join("\n  "));
}

/// The module of the host that a file belongs to: `island` for `host/island/run.rs`, `spec` for `host/spec.rs`.
fn module(path: &str) -> &str {
    let rest = path.strip_prefix("host/").unwrap_or(path);
    rest.split('/').next().unwrap_or(rest).trim_end_matches(".rs")
}

/// The modules of the host that a source names, each with its line: after `crate::`, and after as many `super::` as lead out of its own.
fn named_modules(source: &Source) -> BTreeSet<(String, usize)> {
    let rest = source.path.trim_start_matches("host/").trim_end_matches(".rs").trim_end_matches("/mod");
    let depth = rest.split('/').count();
    let out = "super::".repeat(depth);
    let mut named = BTreeSet::new();
    for road in ["crate::", out.as_str()] {
        for (start, _) in source.code.match_indices(road) {
            let before = &source.code[..start];
            if before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
                continue;
            }
            let line = before.matches('\n').count() + 1;
            let after = &source.code[start + road.len()..];
            named.extend(first_words(after).into_iter().map(|word| (word, line)));
        }
    }
    named
}

/// The word that follows, or, of a list in braces, the first word of each item.
fn first_words(text: &str) -> Vec<String> {
    let word = |text: &str| {
        let text = text.trim_start();
        text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>()
    };
    let Some(list) = text.strip_prefix('{') else { return vec![word(text)] };
    let (mut depth, mut item, mut words) = (1, String::new(), Vec::new());
    for c in list.chars() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if depth == 0 || (depth == 1 && c == ',') {
            words.push(word(&item));
            item.clear();
        } else {
            item.push(c);
        }
        if depth == 0 {
            break;
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Every text between two backquotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The modules in the order in which `host/lib.rs` says that they import.
fn order() -> Vec<String> {
    let text = read("host/lib.rs");
    let doc: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("//!")).collect();
    let doc = doc.concat();
    let (_, list) =
        doc.split_once("each only those above it:").expect("host/lib.rs says in which order modules import");
    quoted(list).into_iter().map(String::from).collect()
}

#[test]
fn modules_import_only_those_that_the_library_lists_before_them() {
    let order = order();
    let place = |module: &str| order.iter().position(|name| name == module);
    let mut problems = Vec::new();
    let library = read("host/lib.rs");
    for module in library.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')) {
        if place(module).is_none() {
            problems.push(format!("host/lib.rs: its order of imports does not name `{module}`"));
        }
    }
    for source in host().filter(|s| !s.path.starts_with("host/engine/")) {
        let own = module(&source.path);
        if ["lib", "main"].contains(&own) {
            continue;
        }
        for (named, line) in named_modules(source) {
            let fits = match (place(&named), place(own)) {
                (Some(named), Some(own)) => named <= own,
                // An item of the library itself, or a module that is reported above.
                _ => true,
            };
            if !fits {
                problems.push(format!("{}:{line}: {own} imports {named}, which comes after it", source.path));
            }
        }
    }
    hold(&problems);
}

#[test]
fn island_and_syncer_never_import_each_other() {
    let mut problems = Vec::new();
    for source in host() {
        let other = match module(&source.path) {
            "island" => "syncer",
            "syncer" => "island",
            _ => continue,
        };
        for (_, line) in named_modules(source).into_iter().filter(|(named, _)| named == other) {
            problems.push(format!("{}:{line}: imports {other}", source.path));
        }
    }
    hold(&problems);
}

#[test]
fn the_http_interface_sees_the_bucket_the_log_and_policies_only() {
    let mut problems = Vec::new();
    for source in host().filter(|s| module(&s.path) == "api") {
        let wrong = ["cli", "data", "island", "report", "score", "sim", "syncer"];
        for (named, line) in named_modules(source).into_iter().filter(|(named, _)| wrong.contains(&named.as_str())) {
            problems.push(format!("{}:{line}: imports {named}", source.path));
        }
    }
    hold(&problems);
}

#[test]
fn policy_and_engine_know_nothing_of_the_host_and_data_and_report_nothing_of_the_bucket() {
    let mut problems = Vec::new();
    for source in host() {
        let named = named_modules(source);
        let wrong: Vec<_> = match module(&source.path) {
            "policy" => named.into_iter().filter(|(module, _)| module != "policy").collect(),
            "data" | "report" => named.into_iter().filter(|(module, _)| module == "bucket").collect(),
            "engine" => lines_with(&source.code, "tombolo").into_iter().map(|line| ("the host".into(), line)).collect(),
            _ => Vec::new(),
        };
        problems.extend(wrong.into_iter().map(|(module, line)| format!("{}:{line}: imports {module}", source.path)));
    }
    for dependency in ["tombolo", "tokio", "object_store", "reqwest", "wasmtime"] {
        let manifest = read("host/engine/Cargo.toml");
        if manifest.lines().any(|line| line.split(['=', '.', ' ']).next() == Some(dependency)) {
            problems.push(format!("host/engine/Cargo.toml: depends on {dependency}"));
        }
    }
    hold(&problems);
}

#[test]
fn machines_decide_and_do_nothing() {
    let mut problems = Vec::new();
    for source in host().filter(|s| s.path.ends_with("/machine.rs")) {
        let io =
            ["async", "await", "now()", "nonce", "object_store", "Bucket", "std::fs", "std::env", "sleep", "spawn"];
        for word in io {
            for line in lines_with(&source.code, word) {
                problems.push(format!("{}:{line}: `{word}`, but a machine is pure", source.path));
            }
        }
    }
    hold(&problems);
}

#[test]
fn only_one_file_of_the_protocol_spells_keys() {
    let parts = [
        "card.json",
        "checkpoint/",
        "data/",
        "doctor/",
        "fragment/",
        "incarnation/",
        "island/",
        "log/",
        "offer/",
        "policy/",
        "state/",
        "syncer/",
    ];
    let mut problems = Vec::new();
    let spells = |path: &str| KEY_SPELLERS.iter().any(|(file, _)| *file == path);
    for source in host().filter(|s| !spells(&s.path) && !s.path.starts_with("host/engine/")) {
        for (line, literal) in &source.literals {
            if parts.iter().any(|part| literal.starts_with(part) || literal.contains(&format!("/{part}"))) {
                problems.push(format!("{}:{line}: spells a key: \"{literal}\"; ask host/bucket/key.rs", source.path));
            }
        }
    }
    hold(&problems);
}

#[test]
fn files_of_code_stay_short() {
    let mut problems = Vec::new();
    for source in sources().iter().filter(|s| !is_test(&s.path)) {
        let lines = source.code.lines().count();
        if lines > LINES_MAX {
            problems
                .push(format!("{}: {lines} lines, at most {LINES_MAX}; which two things does it hold?", source.path));
        }
    }
    hold(&problems);
}

#[test]
fn nothing_is_left_to_be_done() {
    let mut problems = Vec::new();
    for source in sources() {
        for word in ["todo!", "unimplemented!", "dbg!"] {
            for line in lines_with(&source.code, word) {
                problems.push(format!("{}:{line}: {word}", source.path));
            }
        }
    }
    hold(&problems);
}

#[test]
fn only_the_clock_reads_a_clock_and_only_the_nonce_draws_random_bits() {
    let mut problems = Vec::new();
    let allowed = |path: &str| {
        path == "host/clock.rs"
            || path.starts_with("host/report/")
            || CLOCK_READERS.iter().any(|(file, _)| *file == path)
    };
    for source in host() {
        let clocks = [
            "std::time::Instant",
            "Instant::now",
            "SystemTime",
            "thread::sleep",
            "tokio::time",
            "park_timeout",
            "recv_timeout",
            "wait_timeout",
        ];
        for word in clocks.into_iter().filter(|_| !allowed(&source.path)) {
            for line in lines_with(&source.code, word) {
                problems.push(format!("{}:{line}: {word}; time comes from host/clock.rs", source.path));
            }
        }
        // The crate itself is for simulations, which draw everything from their seed.
        let seeded = source.path.starts_with("host/sim/") || source.path == "host/nonce.rs";
        let crates = ["rand"].into_iter().filter(|_| !seeded);
        let sources = ["OsRng", "from_os_rng", "getrandom", "RandomState", "rand::rng", "rand::random", "thread_rng"];
        for word in sources.into_iter().filter(|_| source.path != "host/nonce.rs").chain(crates) {
            for line in lines_with(&source.code, word) {
                problems.push(format!("{}:{line}: {word}; randomness comes from host/nonce.rs", source.path));
            }
        }
    }
    hold(&problems);
}

#[test]
fn protocol_code_holds_nothing_whose_order_changes_from_run_to_run() {
    let mut problems = Vec::new();
    for source in host() {
        if !PROTOCOL.iter().any(|folder| source.path.starts_with(folder)) || source.path == ARROW {
            continue;
        }
        for word in ["HashMap", "HashSet"] {
            for line in lines_with(&source.code, word) {
                problems.push(format!("{}:{line}: {word}; a BTreeMap or BTreeSet has one order", source.path));
            }
        }
    }
    hold(&problems);
}

#[test]
fn every_source_begins_with_what_it_is_for() {
    let mut problems = Vec::new();
    for source in sources() {
        if !source.text.starts_with("//! ") {
            problems.push(format!("{}: does not begin with a `//!` comment", source.path));
        }
    }
    hold(&problems);
}

/// A document without its fenced blocks.
fn prose(text: &str) -> String {
    text.split("\n```").step_by(2).collect::<Vec<_>>().join("\n")
}

/// The anchors that a document's headings make: lower case, punctuation gone, blanks as dashes.
fn anchors(text: &str) -> Vec<String> {
    let kept = |c: char| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        _ if c.is_alphanumeric() => Some(c),
        _ => None,
    };
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    headings.map(|heading| heading.to_lowercase().chars().filter_map(kept).collect()).collect()
}

#[test]
fn links_of_documents_lead_somewhere() {
    let mut problems = Vec::new();
    for document in DOCUMENTS {
        let text = prose(&read(document));
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http://") || link.starts_with("https://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let file = if file.is_empty() { document } else { file };
            if !Path::new(file).exists() {
                problems.push(format!("{document}: links to {file}, which is not there"));
            } else if !anchor.is_empty() && !anchors(&prose(&read(file))).iter().any(|found| found == anchor) {
                problems.push(format!("{document}: links to {link}, but {file} has no such heading"));
            }
        }
    }
    hold(&problems);
}

#[test]
fn the_tree_in_the_readme_is_there() {
    let text = read("README.md");
    let (_, after) = text.split_once("\n## Where things are\n").expect("README.md has a tree under `Where things are`");
    let tree = after.split("```").nth(1).expect("the tree is a fenced block");
    let mut folders: Vec<&str> = Vec::new();
    let mut problems = Vec::new();
    for line in tree.lines().skip(1) {
        let level = (line.len() - line.trim_start().len()) / 2;
        let name = line.split_whitespace().next().unwrap_or_default();
        folders.truncate(level);
        folders.push(name);
        let path = folders.concat();
        if !Path::new(&path).exists() {
            problems.push(format!("README.md: {path} is in the tree and not on disk"));
        }
    }
    assert!(tree.lines().count() > 20, "the tree is too small to be true");
    hold(&problems);
}

#[test]
fn files_and_tests_that_documents_name_exist() {
    let mut problems = Vec::new();
    let roots = ["host/", "tests/", "plugins/", "wit/", "infra/", "examples/", ".ci/"];
    for document in DOCUMENTS {
        let text = prose(&read(document));
        for name in quoted(&text).into_iter().filter(|name| roots.iter().any(|root| name.starts_with(root))) {
            let (path, test) = name.split_once("::").unwrap_or((name, ""));
            if path.contains(['<', '*', ' ', '{', 'N']) {
                // A pattern or a command, not one file.
                continue;
            }
            match fs::metadata(path) {
                Err(_) => problems.push(format!("{document}: names {path}, which is not there")),
                Ok(_) if test.is_empty() => {}
                Ok(_) if read(path).contains(&format!("fn {test}(")) => {}
                Ok(_) => problems.push(format!("{document}: {path} has no function {test}")),
            }
        }
    }
    hold(&problems);
}
