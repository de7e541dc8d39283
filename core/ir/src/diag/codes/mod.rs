//! Table of error codes, one file per area. Each code has a page in `docs/errors/` and a test that provokes it.

/// Declares the codes of an area as constants, and the table `ALL` of (code, title) pairs that `byoc error` lists.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $title:literal;)*) => {
        $($(#[$doc])* #[doc = $title] pub const $name: crate::diag::Code = crate::diag::Code($number);)*
        /// All codes of this area with their titles, in ascending order.
        pub const ALL: &[(crate::diag::Code, &str)] = &[$(($name, $title)),*];
    };
}

pub mod artifacts;
pub mod frontends;
pub mod passes;
pub mod plugins;
pub mod runtime;
pub mod serving;
pub mod text;
pub mod types;

use super::Code;

/// Iterates over all codes with their titles, in ascending order.
pub fn all() -> impl Iterator<Item = (Code, &'static str)> {
    [text::ALL, types::ALL, passes::ALL, plugins::ALL, frontends::ALL, runtime::ALL, artifacts::ALL, serving::ALL]
        .into_iter()
        .flatten()
        .copied()
}

#[cfg(test)]
mod tests {
    #[test]
    fn codes_ascend_without_repeats() {
        let codes: Vec<_> = super::all().map(|(code, _)| code).collect();
        assert!(codes.windows(2).all(|pair| pair[0] < pair[1]), "{codes:?}");
    }
}
