//! What the module promises, tried on folders made for it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use proptest::prelude::*;
use tempfile::TempDir;

use super::source::{crate_count, list, list_registry, locked_crates};
use super::*;

/// Text that is the same for the same number and shares no line with that of another.
fn prose(number: u64, lines: usize) -> String {
    (0..lines).map(|line| format!("document {number} says in its line {line} what {number}.{line} is\n")).collect()
}

fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for (name, content) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("below the folder")).expect("made");
        fs::write(path, content).expect("written");
    }
    dir
}

/// A folder of `count` documents of 40 lines, about 2 KiB each.
fn library(count: u64) -> TempDir {
    let texts: Vec<(String, String)> = (0..count).map(|n| (format!("{}/{n}.txt", n % 7), prose(n, 40))).collect();
    let files: Vec<(&str, &[u8])> = texts.iter().map(|(name, text)| (name.as_str(), text.as_bytes())).collect();
    folder(&files)
}

fn open(path: &Path) -> Result<Corpus> {
    Corpus::open(&Source::Path(path.to_owned()), &CorpusLimits::default())
}

fn message(result: Result<Corpus>) -> String {
    result.expect_err("must be refused").to_string()
}

fn lines(text: &[u8]) -> BTreeSet<&[u8]> {
    text.split(|byte| matches!(byte, b'\n' | 0)).filter(|line| !line.is_empty()).collect()
}

#[test]
fn no_line_is_both_trained_on_and_held_out() {
    let dir = library(200);
    let corpus = open(dir.path()).expect("opened");
    let (training, held_out) = (lines(corpus.training()), lines(corpus.held_out()));
    assert_eq!(training.intersection(&held_out).count(), 0);
    assert_eq!(training.len() + held_out.len(), 200 * 40, "every line is on one side or the other");
    assert_eq!(corpus.documents(), 200);
    // A tenth, as 64 KiB would be more: and no more than one piece beyond it.
    let tenth = (corpus.training_bytes() + corpus.held_out_bytes()) / 10;
    assert!((tenth..tenth + 8192).contains(&corpus.held_out_bytes()), "{} of {tenth}", corpus.held_out_bytes());
}

#[test]
fn a_corpus_of_one_file_is_split_at_line_ends() {
    let dir = folder(&[("book.txt", prose(1, 5000).as_bytes())]);
    let corpus = open(&dir.path().join("book.txt")).expect("opened");
    let (training, held_out) = (lines(corpus.training()), lines(corpus.held_out()));
    assert_eq!((training.len() + held_out.len(), training.intersection(&held_out).count()), (5000, 0));
    assert!(held_out.len() > 100 && training.len() > 4000);
    assert_eq!(corpus.training().last(), Some(&SEPARATOR));
    assert_eq!(corpus.held_out().last(), Some(&SEPARATOR));
}

#[test]
fn a_text_without_line_ends_is_cut_between_characters() {
    let dir = folder(&[("long.txt", "αβγδε💡".repeat(4000).as_bytes())]);
    let corpus = open(&dir.path().join("long.txt")).expect("opened");
    for part in [corpus.training(), corpus.held_out()] {
        assert!(std::str::from_utf8(part).is_ok());
    }
}

#[test]
fn the_same_files_elsewhere_have_the_same_fingerprint_and_other_files_another() {
    let (one, two, other) = (library(50), library(50), library(51));
    let print = |dir: &TempDir| open(dir.path()).expect("opened").fingerprint();
    assert_eq!(print(&one), print(&two));
    assert_ne!(print(&one), print(&other));
    assert_eq!(print(&one).len(), 64);
}

#[test]
fn another_split_seed_holds_out_other_documents() {
    let dir = library(60);
    let whole = open(dir.path()).expect("opened");
    let limits = CorpusLimits { split_seed: 1, ..CorpusLimits::default() };
    let other = Corpus::open(&Source::Path(dir.path().to_owned()), &limits).expect("opened");
    assert_ne!(whole.held_out(), other.held_out(), "another seed holds out other documents");
}

#[test]
fn files_that_are_not_text_are_counted_and_named() {
    let text = prose(1, 1000);
    let dir = folder(&[
        ("a.txt", text.as_bytes()),
        ("copy/of/a.txt", text.as_bytes()),
        ("empty.txt", b""),
        ("blank.txt", b" \n\n"),
        ("picture.bin", b"\x89PNG\0\0"),
        ("latin.txt", b"caf\xe9"),
        (".hidden/notes.txt", prose(2, 1000).as_bytes()),
    ]);
    let corpus = open(dir.path()).expect("opened");
    assert_eq!(corpus.documents(), 1);
    assert_eq!(corpus.skipped(), Skipped { empty: 2, binary: 2, duplicate: 1, ..Skipped::default() });
    assert!(
        corpus.description().contains("5 file(s) passed over (2 binary, 2 empty, 1 duplicates)"),
        "{}",
        corpus.description()
    );
}

#[test]
fn a_corpus_stops_at_its_limit_and_says_so() {
    let dir = library(100);
    let limits = CorpusLimits { bytes: 50_000, ..CorpusLimits::default() };
    let corpus = Corpus::open(&Source::Path(dir.path().to_owned()), &limits).expect("opened");
    let total = corpus.training_bytes() + corpus.held_out_bytes();
    assert!((48_000..=50_100).contains(&total), "{total}");
    assert!(corpus.skipped().beyond_limit > 50);
    let one = folder(&[("book.txt", "αβγδε💡".repeat(9000).as_bytes())]);
    let corpus = Corpus::open(&Source::Path(one.path().join("book.txt")), &limits)
        .expect("a cut through a character is no error");
    assert!(corpus.training_bytes() + corpus.held_out_bytes() <= 50_100);
}

#[test]
fn a_path_that_is_missing_empty_or_binary_has_an_error_that_says_what_to_do() {
    let empty = folder(&[]);
    let binary = folder(&[("a", b"\0"), ("b", b"\xff\xfe")]);
    let small = folder(&[("a.txt", b"hello\n")]);
    let missing = message(open(&empty.path().join("nothing")));
    assert!(missing.contains("no such file or folder") && missing.contains("glob"), "{missing}");
    assert!(message(open(empty.path())).contains("no file in that folder"));
    let nothing = message(open(&empty.path().join("*.txt")));
    assert!(nothing.contains("no file matches the pattern"), "{nothing}");
    let no_text = message(open(binary.path()));
    assert!(no_text.contains("2 file(s) passed over (2 binary)"), "{no_text}");
    let too_small = message(open(small.path()));
    assert!(too_small.contains("7 bytes") && too_small.contains("16384"), "{too_small}");
}

#[test]
fn a_corpus_too_small_for_its_islands_says_how_much_is_needed() {
    let dir = library(30);
    let corpus = open(dir.path()).expect("opened");
    let error = Blocks::new(&corpus, 0, 128, 3).expect_err("60 KiB are no three blocks").to_string();
    assert!(error.contains("98305") && error.contains("3 island(s)"), "{error}");
    assert!(matches!(Blocks::new(&corpus, 0, 0, 3), Err(Error::Context { .. })));
    assert!(Blocks::new(&corpus, 0, 32, 3).is_ok());
}

#[test]
fn a_glob_takes_what_matches_it() {
    let dir = folder(&[
        ("a/one.md", prose(1, 300).as_bytes()),
        ("a/b/two.md", prose(2, 300).as_bytes()),
        ("a/b/three.txt", prose(3, 300).as_bytes()),
        ("four.md", prose(4, 300).as_bytes()),
    ]);
    let names = |pattern: &str| -> BTreeSet<String> {
        let listing = list(&Source::Path(dir.path().join(pattern))).expect("something matches");
        listing.files.into_iter().map(|file| file.name).collect()
    };
    // Names are those below the last folder without a wildcard.
    let set = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|name| (*name).to_owned()).collect() };
    assert_eq!(names("*.md"), set(&["four.md"]));
    assert_eq!(names("**/*.md"), set(&["a/one.md", "a/b/two.md", "four.md"]));
    assert_eq!(names("a/?/t*"), set(&["b/two.md", "b/three.txt"]));
    assert_eq!(names("a/b/[!a-s]*.[mt]*"), set(&["two.md", "three.txt"]));
    assert_eq!(names("a/**"), set(&["one.md", "b/two.md", "b/three.txt"]));
    assert_eq!(names("*/[a-c]/t?o.md"), set(&["a/b/two.md"]));
}

#[test]
fn an_empty_registry_says_where_it_looked_and_how_to_pass_text() {
    let home = tempfile::tempdir().expect("a folder");
    let error = list_registry(&[home.path().to_owned()]).expect_err("nothing there").to_string();
    assert!(error.contains(&home.path().join("registry/src").display().to_string()), "{error}");
    assert!(error.contains("--data PATH"), "{error}");
    let error = list_registry(&[]).expect_err("nowhere to look").to_string();
    assert!(error.contains("neither CARGO_HOME nor a home folder is set"), "{error}");
}

#[test]
fn every_crate_of_the_list_is_in_the_lock_file() {
    let lock = include_str!("../../Cargo.lock");
    assert_eq!(
        locked_crates(lock).len(),
        crate_count(),
        "a crate was dropped from the dependencies: take it off the list"
    );
}

#[test]
fn the_registry_of_this_build_gives_a_corpus() {
    // The crates were fetched to build this test. Vendored builds have no registry: that is the
    // other error, tested above.
    let corpus = match Corpus::open(&Source::CargoRegistry, &CorpusLimits::default()) {
        Err(error @ Error::RegistryEmpty { .. }) => {
            eprintln!("NOT TESTED: {error}");
            return;
        }
        other => other.expect("opened"),
    };
    eprintln!("{} ({})", corpus.description(), corpus.fingerprint());
    assert!(!corpus.description().contains("missing"), "{}", corpus.description());
    assert!(corpus.training_bytes() > 20 << 20);
    assert!(corpus.held_out_bytes() > 700_000);
    Blocks::new(&corpus, 7, 256, 16).expect("enough for sixteen islands");
}

#[test]
fn the_windows_of_an_epoch_cover_the_training_part_once() {
    let dir = library(100);
    let corpus = open(dir.path()).expect("opened");
    let context = 37;
    let blocks = Blocks::new(&corpus, 3, context, 1).expect("enough");
    let text = corpus.training();
    let mut seen = BTreeSet::new();
    let mut window = vec![0; context + 1];
    for block in 0..blocks.blocks_per_epoch() {
        for index in 0..BLOCK_WINDOWS {
            let position = blocks.position(block, index);
            assert!(seen.insert(position), "window {position} twice in an epoch");
            blocks.window(block, index, &mut window);
            let start = usize::try_from(position).expect("small") * context;
            let expected: Vec<u32> = text[start..=start + context].iter().copied().map(u32::from).collect();
            assert_eq!(window, expected);
        }
    }
    assert!(blocks.windows() - (seen.len() as u64) < BLOCK_WINDOWS as u64);
    assert_eq!(blocks.windows(), (text.len() as u64 - 1) / context as u64);
    assert_eq!(blocks.epoch(blocks.blocks_per_epoch()), 1);
}

#[test]
fn a_batch_is_a_pure_function_of_corpus_seed_context_and_cursor() {
    let dir = library(100);
    let corpus = open(dir.path()).expect("opened");
    let elsewhere = open(library(100).path()).expect("opened");
    let take = |corpus: &Corpus, seed: u64, block: u64, rows: usize| {
        let blocks = Blocks::new(corpus, seed, 16, 1).expect("enough");
        let mut cursor = Cursor::at(block);
        let mut out = vec![0; rows * 17];
        blocks.batch(&mut cursor, rows, &mut out, |used| Cursor::at(used.block + 3));
        (out, cursor)
    };
    let (first, cursor) = take(&corpus, 1, 2, 300);
    assert_eq!(cursor, Cursor { block: 5, attempt: 0, window: 300 - BLOCK_WINDOWS });
    assert_eq!(take(&elsewhere, 1, 2, 300), (first.clone(), cursor));
    assert_ne!(take(&corpus, 2, 2, 300).0, first, "another seed, another order");
    assert_ne!(take(&corpus, 1, 3, 300).0, first, "another block, other windows");
    // The same rows in two bites, as a resumed island takes them.
    let blocks = Blocks::new(&corpus, 1, 16, 1).expect("enough");
    let mut cursor = Cursor::at(2);
    let mut out = vec![0; 300 * 17];
    let (head, tail) = out.split_at_mut(123 * 17);
    blocks.batch(&mut cursor, 123, head, |used| Cursor::at(used.block + 3));
    let text = serde_json::to_string(&cursor).expect("json");
    let mut resumed: Cursor = serde_json::from_str(&text).expect("back");
    blocks.batch(&mut resumed, 177, tail, |used| Cursor::at(used.block + 3));
    assert_eq!(out, first);
    // A later epoch has the same windows in another order.
    assert_ne!(take(&corpus, 1, 2 + blocks.blocks_per_epoch(), 300).0, first);
}

#[test]
fn held_out_batches_are_spread_over_the_held_out_part_only() {
    let dir = library(300);
    let corpus = open(dir.path()).expect("opened");
    let blocks = Blocks::new(&corpus, 0, 64, 1).expect("enough");
    let (rows, batches) = (4, blocks.held_out_batches(4));
    assert!(batches > 50);
    let mut out = vec![0; rows * 65];
    let mut starts = Vec::new();
    for index in 0..batches {
        blocks.held_out_batch(index, batches, rows, &mut out);
        for row in out.chunks_exact(65) {
            let bytes: Vec<u8> = row.iter().map(|token| u8::try_from(*token).expect("a byte")).collect();
            let at = corpus.held_out().windows(65).position(|window| window == bytes).expect("held-out text");
            starts.push(at);
        }
    }
    assert_eq!(starts.first(), Some(&0));
    assert_eq!(starts.last(), Some(&(corpus.held_out().len() - 65)));
    assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= 64), "no token is scored twice");
    // One window, and more windows than there are, are possible too.
    blocks.held_out_batch(0, 1, 1, &mut out[..65]);
    blocks.held_out_batch(batches * 9, batches * 10, rows, &mut out);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn a_permutation_is_a_bijection(len in 1_u64..5000, key: u64, epoch: u64) {
        let permutation = Permutation::new(len, key, epoch);
        let mut hit = vec![false; usize::try_from(len).expect("small")];
        for index in 0..len {
            let at = permutation.apply(index);
            prop_assert!(at < len);
            let seen = &mut hit[usize::try_from(at).expect("small")];
            prop_assert!(!std::mem::replace(seen, true), "{at} twice");
        }
    }

    #[test]
    fn a_permutation_of_a_huge_range_stays_inside_and_keeps_values_apart(
        len in 1_u64.., a: u64, b: u64, key: u64,
    ) {
        let permutation = Permutation::new(len, key, 0);
        let (a, b) = (a % len, b % len);
        prop_assert!(permutation.apply(a) < len);
        prop_assert_eq!(permutation.apply(a) == permutation.apply(b), a == b);
    }

    #[test]
    fn a_split_loses_no_byte_and_repeats_none(
        sizes in prop::collection::vec(1_usize..400, 2..40), seed: u64,
    ) {
        let texts: Vec<(String, String)> = sizes
            .iter()
            .enumerate()
            .map(|(n, lines)| (format!("{n}.txt"), prose(n as u64, *lines)))
            .collect();
        prop_assume!(texts.iter().map(|(_, text)| text.len()).sum::<usize>() > 16 * 1024);
        let files: Vec<(&str, &[u8])> =
            texts.iter().map(|(name, text)| (name.as_str(), text.as_bytes())).collect();
        let dir = folder(&files);
        let limits = CorpusLimits { split_seed: seed, ..CorpusLimits::default() };
        let corpus = Corpus::open(&Source::Path(dir.path().to_owned()), &limits).expect("opened");
        let (training, held_out) = (lines(corpus.training()), lines(corpus.held_out()));
        prop_assert_eq!(training.len() + held_out.len(), sizes.iter().sum::<usize>());
        prop_assert_eq!(training.intersection(&held_out).count(), 0);
        let newlines = |part: &[u8]| part.iter().filter(|byte| **byte == b'\n').count();
        prop_assert_eq!(
            newlines(corpus.training()) + newlines(corpus.held_out()),
            sizes.iter().sum::<usize>()
        );
    }
}

/// Not a test of truth but of the shuffle's quality: neighbours must not stay neighbours, or a
/// block would be one document.
#[test]
fn a_permutation_parts_neighbours() {
    let len = 100_000;
    let permutation = Permutation::new(len, 42, 0);
    let near = (1..len).filter(|index| permutation.apply(*index).abs_diff(permutation.apply(index - 1)) < 100).count();
    // Of random pairs, 0.2 % are this near: 200. Five standard deviations are 70.
    assert!((130..270).contains(&near), "{near} of {len} neighbours are still near each other");
}
