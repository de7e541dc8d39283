//! `byoc error`: prints the error reference. The pages in `docs/errors/` are embedded in the binary.

use super::args::ErrorArgs;
use super::table;
use byoc::runtime::error::Failure;
use byoc_ir::diag::{Code, Diagnostic, codes};
use std::process::ExitCode;

macro_rules! pages {
    ($($number:literal)*) => {
        /// Pages of the error reference, keyed by code number.
        const PAGES: &[(u16, &str)] =
            &[$(($number, include_str!(concat!("../../../docs/errors/E0", stringify!($number), ".md")))),*];
    };
}

pages! {
    101 102 103 104 105 106 107 108 110 201 202 203 204 205 206 207 208 209 210 301 310 311 312 313 314 315 316 317
    318 320 330 331 340 341 342 343 344 345 350 360 361 390 401 402 403 404 405 406 407 408 409 410 411 412 413
    414 415 416 417 418 419 420 421 422 423 424 425 426 427 428 429 430 440 441 450 451 452 460 461 462 501 502 503 504 505 506
    507 508 509 510 511 512 513 514 515 516 517 518 519 520 521 522 523 524 525 526 530 531 532 533 534 601 602 603 604
    605 606 607 608 609 610 611 612 613 614 615 616 617 618 619 620 621 622 623 624 625 626 701 702 703 704 705 706
    707 708 709 710 711 712 801 802 803 804 805 806 807 808 809 810
}

/// Reference for the refusal reasons in `byoc explain`, with one section per code.
const REASONS: &str = include_str!("../../../docs/reasons.md");

/// Returns the reference section of a refusal code, matched case-insensitively.
fn reason(refusal_code: &str) -> Option<&'static str> {
    REASONS
        .split("\n## ")
        .skip(1)
        .find(|section| section.lines().next().is_some_and(|code| code.eq_ignore_ascii_case(refusal_code)))
}

/// Prints the page of an error code, or the list of codes.
pub fn run(args: &ErrorArgs) -> Result<ExitCode, Failure> {
    let Some(code_text) = &args.code else {
        let mut table = table::new(&["code", "meaning"]);
        for (code, title) in codes::all() {
            table.add_row([code.to_string(), title.to_owned()]);
        }
        table::print(&table);
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(section) = reason(code_text) {
        println!("# {}", section.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let number: Option<u16> = code_text.trim_start_matches(['E', 'e']).parse().ok();
    match PAGES.iter().find(|(n, _)| Some(*n) == number) {
        Some((_, page)) => {
            println!("{}", page.trim_end());
            Ok(ExitCode::SUCCESS)
        }
        None => Err(Diagnostic::error(Code(403), format!("unknown error code \"{code_text}\""))
            .help("run \"byoc error\" to list all codes")
            .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use byoc_core::pass::RefusalCode;

    #[test]
    fn every_refusal_code_has_a_section() {
        let sections = REASONS.split("\n## ").skip(1).map(|section| section.lines().next().unwrap_or_default());
        assert_eq!(sections.collect::<Vec<_>>(), RefusalCode::ALL.map(|code| code.to_string()));
        assert!(reason("dynamicdim").is_some_and(|section| section.contains("--dim batch=4")));
    }

    #[test]
    fn every_code_has_a_page() {
        let undocumented: Vec<_> = codes::all().filter(|(c, _)| !PAGES.iter().any(|(n, _)| *n == c.0)).collect();
        assert!(undocumented.is_empty(), "expected a page for every code, found none for {undocumented:?}");
        for (code, title) in codes::all() {
            let page = PAGES.iter().find(|(n, _)| *n == code.0).map(|(_, page)| *page).unwrap_or_default();
            assert_eq!(page.lines().next(), Some(&*format!("# {code}: {title}")));
        }
    }
}
