//! Shell patterns for `--data`: `*` and `?` inside one path component, `[a-z]` and `[!a-z]`
//! classes, `**` for any number of folders.

use std::path::{Component, Path, PathBuf};

/// Whether the path has a character that makes it a pattern.
pub(super) fn is_pattern(path: &Path) -> bool {
    path.to_string_lossy().contains(['*', '?', '['])
}

/// Splits a pattern into the folder to start from (no wildcard in it) and the components to match
/// below.
pub(super) fn split(path: &Path) -> (PathBuf, Vec<String>) {
    let mut root = PathBuf::new();
    let mut pattern = Vec::new();
    for component in path.components() {
        let text = component.as_os_str().to_string_lossy();
        if pattern.is_empty() && !(matches!(component, Component::Normal(_)) && text.contains(['*', '?', '['])) {
            root.push(component);
        } else {
            pattern.push(text.into_owned());
        }
    }
    if root.as_os_str().is_empty() {
        root.push(".");
    }
    (root, pattern)
}

/// Whether `components`, a path below the root, matches `pattern`.
pub(super) fn matches(pattern: &[String], components: &[&str]) -> bool {
    match pattern.split_first() {
        None => components.is_empty(),
        Some((first, rest)) if first == "**" => (0..=components.len()).any(|taken| matches(rest, &components[taken..])),
        Some((first, rest)) => match components.split_first() {
            Some((name, below)) => {
                let (first, name): (Vec<char>, Vec<char>) = (first.chars().collect(), name.chars().collect());
                component(&first, &name) && matches(rest, below)
            }
            None => false,
        },
    }
}

/// Whether one component matches. Every `*` is tried at every length, but only the last one seen is
/// ever tried again, so time is bounded by the product of the two lengths.
fn component(pattern: &[char], name: &[char]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        let step = match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
                continue;
            }
            Some('?') => Some(1),
            Some('[') => class(&pattern[p..], name[n]),
            Some(literal) => (*literal == name[n]).then_some(1),
            None => None,
        };
        match (step, star) {
            (Some(width), _) => {
                p += width;
                n += 1;
            }
            (None, Some((star_at, taken))) => {
                star = Some((star_at, taken + 1));
                p = star_at + 1;
                n = taken + 1;
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|rest| *rest == '*')
}

/// Matches a class such as `[a-z_]` at the head of `pattern`; the width of the class where it
/// matches. A `[` that is never closed is itself.
fn class(pattern: &[char], found: char) -> Option<usize> {
    let Some(end) = pattern.iter().skip(2).position(|c| *c == ']').map(|at| at + 2) else {
        return (found == '[').then_some(1);
    };
    let negated = matches!(pattern[1], '!' | '^');
    let mut body = &pattern[if negated { 2 } else { 1 }..end];
    let mut hit = false;
    while let Some(first) = body.first() {
        if body.len() >= 3 && body[1] == '-' {
            hit |= (*first..=body[2]).contains(&found);
            body = &body[3..];
        } else {
            hit |= *first == found;
            body = &body[1..];
        }
    }
    (hit != negated).then_some(end + 1)
}
