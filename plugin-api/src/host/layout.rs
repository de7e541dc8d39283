//! Condenses the layout checker's report, which prints both types in full for every difference, to one line per
//! difference.

/// Returns the differences in a report: `PluginModule.init.result: mismatched type: expected Info, found u32`.
pub(super) fn differences(report: &str) -> Vec<String> {
    let mut differences = Vec::new();
    let mut parser = ReportParser::default();
    for line in report.lines().map(str::trim) {
        if line.ends_with("error(s)inside:") {
            parser.flush(&mut differences);
            parser = ReportParser { section: Section::Path, ..ReportParser::default() };
        } else if let Some(problem) = line.strip_prefix("Error:") {
            parser.flush(&mut differences);
            parser.section = Section::Problem;
            parser.problem.push_str(problem);
        } else {
            parser.read(line);
        }
    }
    parser.flush(&mut differences);
    differences
}

/// Section of the report on one difference.
#[derive(Default, PartialEq)]
enum Section {
    /// Both layouts in full, which are skipped.
    #[default]
    Layouts,
    /// Path to the differing field.
    Path,
    Problem,
    Expected,
    Found,
}

#[derive(Default)]
struct ReportParser {
    section: Section,
    path: Vec<String>,
    problem: String,
    expected: String,
    found: String,
}

impl ReportParser {
    fn read(&mut self, line: &str) {
        match (&self.section, line) {
            (Section::Path, "Layout of expected type:") => self.section = Section::Layouts,
            (Section::Path, _) => self.read_path(line),
            (Section::Problem, "Expected:") => self.section = Section::Expected,
            (Section::Expected, "Found:") => self.section = Section::Found,
            (Section::Problem, _) => append(&mut self.problem, line),
            (Section::Expected, _) => append(&mut self.expected, line),
            (Section::Found, _) => append(&mut self.found, line),
            (Section::Layouts, _) => {}
        }
    }

    fn read_path(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("field_name:") {
            self.path.push(match name {
                "__returns" => "result".to_owned(),
                "," | "" => "argument".to_owned(),
                name => name.to_owned(),
            });
        } else if let (Some(ty), [_]) = (line.strip_prefix("type:"), &self.path[..]) {
            // The first entry is the root, whose type is more descriptive than its name, a number.
            self.path[0] = ty.to_owned();
        }
    }

    fn flush(&mut self, differences: &mut Vec<String>) {
        if self.problem.is_empty() {
            return;
        }
        let (problem, expected, found) = (&self.problem, &self.expected, &self.found);
        let path = self.path.join(".");
        let mut line = if path.is_empty() { problem.clone() } else { format!("{path}: {problem}") };
        if !expected.is_empty() || !found.is_empty() {
            line += &format!(": expected {expected}, found {found}");
        }
        if !differences.contains(&line) {
            differences.push(line);
        }
        (self.problem, self.expected, self.found) = (String::new(), String::new(), String::new());
    }
}

/// Appends the first 100 characters of a line, unless `text` already exceeds 80 bytes, so that a difference fits on one
/// or two screen lines.
fn append(text: &mut String, line: &str) {
    if line.is_empty() || text.len() > 80 {
        return;
    }
    if !text.is_empty() {
        text.push(' ');
    }
    text.extend(line.chars().take(100));
}
