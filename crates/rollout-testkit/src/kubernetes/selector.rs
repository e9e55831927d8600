//! Label and field selectors.

use serde_json::Value;

use super::query::Query;

/// Which objects of a list are meant.
#[derive(Debug, Default, Clone)]
pub(super) struct Selector {
    labels: Vec<Condition>,
    fields: Vec<Condition>,
}

#[derive(Debug, Clone)]
enum Condition {
    Is(String, Vec<String>),
    IsNot(String, Vec<String>),
    Exists(String),
    Absent(String),
}

impl Selector {
    pub(super) fn new(query: &Query) -> Self {
        let conditions = |name| query.get(name).map(parse).unwrap_or_default();
        Self { labels: conditions("labelSelector"), fields: conditions("fieldSelector") }
    }

    pub(super) fn selects(&self, object: &Value) -> bool {
        let label = |key: &str| object["metadata"]["labels"][key].as_str().map(str::to_owned);
        let field = |path: &str| {
            let value = path.split('.').fold(object, |value, part| &value[part]);
            // A field without a value is empty.
            Some(value.as_str().unwrap_or_default().to_owned())
        };
        self.labels.iter().all(|condition| condition.holds(label))
            && self.fields.iter().all(|condition| condition.holds(field))
    }
}

impl Condition {
    fn holds(&self, value: impl Fn(&str) -> Option<String>) -> bool {
        match self {
            Self::Is(key, values) => value(key).is_some_and(|value| values.contains(&value)),
            Self::IsNot(key, values) => value(key).is_none_or(|value| !values.contains(&value)),
            Self::Exists(key) => value(key).is_some(),
            Self::Absent(key) => value(key).is_none(),
        }
    }
}

fn parse(text: &str) -> Vec<Condition> {
    let mut conditions = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        // A comma in parentheses belongs to a set of values.
        let mut depth = 0;
        let end = rest.find(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            c == ',' && depth == 0
        });
        let (part, tail) = end.map_or((rest, ""), |end| (&rest[..end], &rest[end + 1..]));
        conditions.push(condition(part.trim()));
        rest = tail.trim();
    }
    conditions
}

fn condition(part: &str) -> Condition {
    let set = |values: &str| -> Vec<String> {
        values.trim().trim_matches(['(', ')']).split(',').map(|value| value.trim().to_owned()).collect()
    };
    let key = |key: &str| key.trim().to_owned();
    if let Some((name, values)) = part.split_once(" notin ") {
        Condition::IsNot(key(name), set(values))
    } else if let Some((name, values)) = part.split_once(" in ") {
        Condition::Is(key(name), set(values))
    } else if let Some((name, value)) = part.split_once("!=") {
        Condition::IsNot(key(name), vec![key(value)])
    } else if let Some((name, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        Condition::Is(key(name), vec![key(value)])
    } else if let Some(name) = part.strip_prefix('!') {
        Condition::Absent(key(name))
    } else {
        Condition::Exists(key(part))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Query, Selector};

    #[test]
    fn selectors_select_by_labels_and_fields() {
        let pod = json!({"metadata": {"name": "a", "labels": {"job": "one", "n": "1"}}, "status": {"phase": "Running"}});
        for (query, selected) in [
            ("", true),
            ("labelSelector=job%3Done", true),
            ("labelSelector=job==one,n%20in%20(1,2)", true),
            ("labelSelector=job+notin+(one,two)", false),
            ("labelSelector=job!=two,!other,n", true),
            ("labelSelector=other", false),
            ("fieldSelector=metadata.name=a,status.phase!=Failed", true),
            ("fieldSelector=spec.nodeName=x", false),
        ] {
            assert_eq!(Selector::new(&Query::parse(query)).selects(&pod), selected, "{query}");
        }
    }
}
