//! Distinct reasons of refusals. Reasons that differ in one number are one reason with a range.

use byoc::driver::explanation::{Explanation, NodeRow, RefusalRow};
use std::collections::BTreeMap;

/// Distinct refusal reasons, most frequent first.
pub struct Reasons<'a> {
    /// Reasons in the order of their numbers, which begin with 1.
    pub ranked: Vec<Reason<'a>>,
    numbers: BTreeMap<[&'a str; 4], usize>,
}

/// Reason of one or more refusals.
pub struct Reason<'a> {
    /// Text of the reason.
    pub text: String,
    /// Number of operators refused for this reason.
    pub operators: usize,
    /// Reasons of the refusals, which differ in one number.
    pub members: Vec<[&'a str; 4]>,
}

impl<'a> Reasons<'a> {
    /// Collects the reasons of an explanation.
    pub fn of(explanation: &'a Explanation) -> Reasons<'a> {
        let mut counts: BTreeMap<[&str; 4], (&RefusalRow, usize)> = BTreeMap::new();
        for refusal in explanation.nodes.iter().flat_map(|node| &node.refusals) {
            counts.entry(refusal.reason()).or_insert((refusal, 0)).1 += 1;
        }
        let mut groups: BTreeMap<[String; 4], Vec<(&RefusalRow, usize)>> = BTreeMap::new();
        for ([backend, code, detail, hint], member) in counts {
            let key = [backend, code, &template(detail), hint].map(str::to_owned);
            groups.entry(key).or_default().push(member);
        }
        let mut ranked: Vec<Reason<'_>> = groups.into_values().flat_map(|members| reasons_of(&members)).collect();
        // The sort is stable, so equally frequent reasons stay sorted by backend and code.
        ranked.sort_by_key(|reason| std::cmp::Reverse(reason.operators));
        let numbered = ranked.iter().enumerate();
        let numbers =
            numbered.flat_map(|(i, reason)| reason.members.iter().map(move |&member| (member, i + 1))).collect();
        Reasons { ranked, numbers }
    }

    /// Formats the numbers of an operator's reasons, as in `[1] [3]`.
    pub fn reason_numbers(&self, node: &NodeRow) -> String {
        let mut indices: Vec<usize> =
            node.refusals.iter().filter_map(|refusal| self.numbers.get(&refusal.reason()).copied()).collect();
        indices.sort_unstable();
        indices.dedup();
        let indices: Vec<String> = indices.iter().map(|n| format!("[{n}]")).collect();
        indices.join(" ")
    }
}

/// Returns one reason for refusals that differ in one number, otherwise a reason for each of them.
fn reasons_of<'a>(members: &[(&'a RefusalRow, usize)]) -> Vec<Reason<'a>> {
    let details: Vec<&str> = members.iter().map(|(refusal, _)| &*refusal.detail).collect();
    match range(&details) {
        Some(detail) => vec![Reason {
            text: RefusalRow { detail, ..members[0].0.clone() }.to_string(),
            operators: members.iter().map(|(_, operators)| operators).sum(),
            members: members.iter().map(|(refusal, _)| refusal.reason()).collect(),
        }],
        None => members
            .iter()
            .map(|&(refusal, operators)| Reason {
                text: refusal.to_string(),
                operators,
                members: vec![refusal.reason()],
            })
            .collect(),
    }
}

/// Returns a text for several with the same template: the least and the greatest value of the only number in which they
/// differ. `None` if there is one text, or they differ in several numbers.
fn range(texts: &[&str]) -> Option<String> {
    let all: Vec<Vec<Token<'_>>> = texts.iter().map(|text| tokens(text)).collect();
    let (first, rest) = all.split_first()?;
    let differs = |&index: &usize| rest.iter().any(|tokens| tokens.get(index) != first.get(index));
    let mut differing = (0..first.len()).filter(differs);
    let index = differing.next()?;
    if differing.next().is_some() {
        return None;
    }
    let mut values: Vec<(f64, &str)> =
        all.iter().filter_map(|tokens| Some((tokens[index].value?, tokens[index].text))).collect();
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (least, greatest) = (values.first()?.1, values.last()?.1);
    let token = |(i, token): (usize, &Token<'_>)| match i == index {
        true => format!("{least} to {greatest}"),
        false => token.text.to_owned(),
    };
    Some(first.iter().enumerate().map(token).collect())
}

/// Returns a text with its numbers replaced.
fn template(text: &str) -> String {
    tokens(text).into_iter().map(|token| if token.value.is_some() { "#" } else { token.text }).collect()
}

/// Part of a text: a number, or what stands between numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Token<'t> {
    text: &'t str,
    value: Option<f64>,
}

/// Splits a text at its numbers. Digits in words, as in `conv2d`, are none.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | '+');
    let mut tokens = Vec::new();
    let mut start = 0;
    while start < text.len() {
        let is_word = text[start..].starts_with(is_part);
        let length = text[start..].find(|c| is_part(c) != is_word).unwrap_or(text.len() - start);
        let word = &text[start..start + length];
        let number = word.trim_end_matches('.');
        let value = number.parse().ok().filter(|_| number.contains(|c: char| c.is_ascii_digit()));
        match value {
            Some(value) => {
                tokens.push(Token { text: number, value: Some(value) });
                if number.len() < word.len() {
                    tokens.push(Token { text: &word[number.len()..], value: None });
                }
            }
            None => tokens.push(Token { text: word, value: None }),
        }
        start += length;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_becomes_a_range() {
        let text = |scale: &str| format!("nn.conv2d: expected a scale below 1, found {scale}");
        let texts = [text("2.5"), text("1e3"), text("3")];
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        assert_eq!(range(&texts).unwrap(), "nn.conv2d: expected a scale below 1, found 2.5 to 1e3");
        assert_eq!(template(texts[0]), template(texts[1]));
        assert_eq!(range(&texts[..1]), None);
        assert_eq!(range(&["a 1 2", "a 2 3"]), None);
        assert_eq!(range(&["stop at 7.", "stop at 9."]).unwrap(), "stop at 7 to 9.");
    }
}
