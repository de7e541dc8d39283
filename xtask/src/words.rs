//! Random samples of the project's comments, messages and names, to be judged by `docs/style.md` and
//! `docs/glossary.md`, and the share of doc comments that open with a relative clause.

use crate::rust_text::{self, Piece, Texts};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Number of comments, messages and names in a sample.
const SAMPLE: [(&str, usize); 3] = [("comments", 100), ("messages", 40), ("names", 40)];

/// Maximum share of doc comments that open with a relative clause.
const MAX_SHARE: f64 = 0.02;

/// First words of a relative clause.
const RELATIVE: [&str; 10] = ["what", "whether", "how", "which", "that", "where", "who", "whose", "whom", "why"];

/// Directories to skip: build output and vendored files.
const SKIPPED: [&str; 3] = ["target", "vendor", "node_modules"];

/// Prints the share of relative clauses by crate, and a sample.
///
/// # Errors
/// If an argument is unknown, a file cannot be read, or the share reaches [`MAX_SHARE`].
pub fn run(args: &[&str]) -> Result<(), String> {
    let seed = match args {
        [] => None,
        ["--seed", seed] => Some(seed.parse().map_err(|_| format!("--seed: expected an integer, found \"{seed}\""))?),
        _ => return Err(format!("words: expected no arguments or `--seed N`, found `{}`", args.join(" "))),
    };
    let files = files(Path::new("."))?;
    if let Some(seed) = seed {
        print!("{}", sample(&files, seed));
        return Ok(());
    }
    let counts = openings(&files);
    print!("{}", table(&counts));
    check(&counts)
}

/// Texts of each file, by path relative to the project root.
type Files = BTreeMap<String, Texts>;

/// Number of doc comments, and of doc comments that open with a relative clause, by crate.
type Counts = BTreeMap<String, (usize, usize)>;

fn files(root: &Path) -> Result<Files, String> {
    let mut result = Files::new();
    let mut pending: Vec<PathBuf> = vec![root.to_owned()];
    while let Some(dir) = pending.pop() {
        let fail = |error: std::io::Error| format!("{}: {error}", dir.display());
        for entry in std::fs::read_dir(&dir).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if !SKIPPED.contains(&&*name) && !name.starts_with('.') && !path.is_symlink() {
                    pending.push(path);
                }
            } else if name.ends_with(".rs") {
                let source = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
                let path = path.strip_prefix(root).unwrap_or(&path).display().to_string();
                result.insert(path, rust_text::scan(&source));
            }
        }
    }
    Ok(result)
}

/// Returns the crate of a file: the directory above `src`, `tests`, `benches` or `examples`.
fn crate_of(path: &str) -> &str {
    ["/src/", "/tests/", "/benches/", "/examples/"]
        .iter()
        .find_map(|dir| path.find(dir))
        .map_or(path.rsplit_once('/').map_or(path, |(dir, _)| dir), |end| &path[..end])
}

fn opens_with_relative_clause(comment: &str) -> bool {
    let first = comment.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    RELATIVE.contains(&first.to_lowercase().as_str())
}

fn openings(files: &Files) -> Counts {
    let mut counts = Counts::new();
    for (path, texts) in files {
        let (total, relative) = counts.entry(crate_of(path).to_owned()).or_default();
        *total += texts.doc_comments.len();
        *relative += texts.doc_comments.iter().filter(|comment| opens_with_relative_clause(&comment.text)).count();
    }
    counts
}

fn table(counts: &Counts) -> String {
    let percent = |(total, relative): (usize, usize)| 100.0 * relative as f64 / total.max(1) as f64;
    let row = |name: &str, count: (usize, usize)| {
        format!("{:>7} {:>5} {:>6.2} %  {name}\n", count.0, count.1, percent(count))
    };
    let rows: String = counts.iter().filter(|(_, count)| count.0 > 0).map(|(name, &count)| row(name, count)).collect();
    format!("doc comments, and those that open with a relative clause\n{rows}{}", row("total", total(counts)))
}

fn total(counts: &Counts) -> (usize, usize) {
    counts.values().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
}

fn check(counts: &Counts) -> Result<(), String> {
    let (total_count, relative) = total(counts);
    if (relative as f64) < MAX_SHARE * total_count as f64 {
        return Ok(());
    }
    Err(format!(
        "expected fewer than {} % of doc comments to open with a relative clause, found {relative} of {total_count}",
        100.0 * MAX_SHARE
    ))
}

/// Draws comments, messages and names, each with its path and line.
fn sample(files: &Files, seed: u64) -> String {
    let list = |select: fn(&Texts) -> Vec<&Piece>| -> Vec<(String, &Piece)> {
        let pieces =
            files.iter().flat_map(|(path, texts)| select(texts).into_iter().map(move |piece| (path.clone(), piece)));
        pieces.collect()
    };
    let comments = list(|texts| texts.doc_comments.iter().chain(&texts.comments).collect());
    let messages = list(|texts| texts.messages.iter().collect());
    let names = list(|texts| texts.names.iter().collect());
    let mut state = seed;
    let mut out = String::new();
    for (mut pieces, (title, count)) in [comments, messages, names].into_iter().zip(SAMPLE) {
        out += &format!("# {title}: {} of {}\n\n", count.min(pieces.len()), pieces.len());
        for n in 0..count.min(pieces.len()) {
            let swap_index = n + (random(&mut state) % (pieces.len() - n) as u64) as usize;
            pieces.swap(n, swap_index);
            let (path, piece) = &pieces[n];
            out += &format!("{}. {path}:{}\n   {}\n", n + 1, piece.line, piece.text.replace('\n', "\n   "));
        }
        out.push('\n');
    }
    out
}

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Files {
        files(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()).unwrap()
    }

    #[test]
    fn doc_comments_open_with_a_verb_or_a_noun() {
        let counts = openings(&tree());
        assert!(total(&counts).0 > 5000, "expected the doc comments of all crates\n{}", table(&counts));
        check(&counts).unwrap_or_else(|error| panic!("{error}\n{}", table(&counts)));
    }

    #[test]
    fn a_share_of_two_percent_fails() {
        let counts = |relative: usize| Counts::from([("a".to_owned(), (60, relative)), ("b".to_owned(), (40, 0))]);
        assert!(check(&counts(1)).is_ok());
        assert!(check(&counts(2)).unwrap_err().contains("2 of 100"));
    }

    #[test]
    fn recognizes_relative_clauses() {
        for comment in ["What it is.", "Whether `x` is NaN.", "How many bytes.", "Who owns it."] {
            assert!(opens_with_relative_clause(comment), "{comment}");
        }
        for comment in ["Returns what it is.", "Whatever.", "Thatched.", "`how`", ""] {
            assert!(!opens_with_relative_clause(comment), "{comment}");
        }
    }

    #[test]
    fn a_seed_determines_the_sample() {
        let files = tree();
        let first = sample(&files, 1);
        assert_eq!(first, sample(&files, 1));
        assert_ne!(first, sample(&files, 2));
        let positions =
            first.lines().filter(|line| line.contains(".rs:") && line.starts_with(|c: char| c.is_ascii_digit()));
        assert_eq!(positions.count(), SAMPLE.iter().map(|(_, count)| count).sum::<usize>());
    }

    #[test]
    fn a_file_belongs_to_the_innermost_crate() {
        assert_eq!(crate_of("core/ir/src/op/def.rs"), "core/ir");
        assert_eq!(crate_of("host/tests/support/mod.rs"), "host");
        assert_eq!(crate_of("fuzz/fuzz_targets/onnx.rs"), "fuzz/fuzz_targets");
    }
}
