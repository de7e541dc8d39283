//! The stages of a region as text: its groups, the nest of each group, and the nest that its schedule makes of it.

use crate::form::Form;
use crate::group::Grouping;
use crate::lower::{Lowering, Phase};
use crate::nest::Stmt;
use crate::print::Printer;
use crate::print::c::C;
use byoc_plugin_support::region::OpId;
use std::fmt::{self, Write};
use std::str::FromStr;

/// Stage of a region between its graph and its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Operators that share a loop nest.
    Group,
    /// Loop nests as they are built.
    Nest,
    /// Steps of each schedule, and the nests that they make.
    Schedule,
}

/// Stages by name.
const STAGES: [(&str, Stage); 3] = [("group", Stage::Group), ("nest", Stage::Nest), ("schedule", Stage::Schedule)];

impl FromStr for Stage {
    type Err = ();

    fn from_str(text: &str) -> Result<Stage, ()> {
        STAGES.iter().find(|row| row.0 == text).map(|row| row.1).ok_or(())
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(STAGES.iter().find(|row| row.1 == *self).map_or("", |row| row.0))
    }
}

/// Formats a stage of a lowered region.
pub fn text(lowering: &Lowering<'_, '_>, stage: Stage) -> String {
    match stage {
        Stage::Group => groups(lowering, lowering.grouping),
        Stage::Nest => phases(lowering, |phase, text| {
            if !phase.nest.is_empty() {
                statements(lowering, &phase.nest, text);
            }
        }),
        Stage::Schedule => phases(lowering, |phase, text| {
            phase.schedule.iter().for_each(|step| {
                let _ = writeln!(text, "  {step}");
            });
            if let Some(function) = phase.functions.last() {
                statements(lowering, &function.body, text);
            }
        }),
    }
}

fn groups(lowering: &Lowering<'_, '_>, grouping: &Grouping) -> String {
    let mut text = String::new();
    for (i, group) in grouping.groups.iter().enumerate() {
        let _ = writeln!(text, "group {i} over {:?}", group.domain);
        let mut line = |role: &str, op: OpId| {
            let _ = writeln!(text, "  {role} {}", lowering.describe(op));
        };
        group.anchor.iter().for_each(|&op| line("anchor", op));
        group.members.iter().for_each(|&op| line("member", op));
    }
    text
}

fn phases(lowering: &Lowering<'_, '_>, write: impl Fn(&Phase, &mut String)) -> String {
    let mut text = String::new();
    for (i, phase) in lowering.phases.iter().enumerate() {
        let group = phase.group.map_or(String::new(), |group| format!(", group {group}"));
        let _ = writeln!(text, "phase {i}: {}{group}", phase.kind);
        phase.comment.iter().for_each(|line| {
            let _ = writeln!(text, "  // {line}");
        });
        write(phase, &mut text);
    }
    text
}

/// Writes statements in the notation of C, whatever the form of the region is.
fn statements(lowering: &Lowering<'_, '_>, stmts: &[Stmt], text: &mut String) {
    let dialect = C { symbol: lowering.symbol, form: Form::Tasks, restrict: true };
    let mut printer = Printer::new(&dialect, 1);
    printer.statements(stmts);
    text.push_str(&printer.text);
}
