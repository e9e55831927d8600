//! Patches in texts: their added and removed lines as markup.

use crate::html::Html;

/// The most lines at the start of a text in which a patch has to begin.
const SEARCHED_LINES: usize = 200;

/// Whether a text contains a patch.
pub(crate) fn is_diff(text: &str) -> bool {
    let mut lines = text.lines().take(SEARCHED_LINES).peekable();
    while let Some(line) = lines.next() {
        let is_start = line.starts_with("diff --git ")
            || line == "*** Begin Patch"
            || (line.starts_with("--- ") && lines.peek().is_some_and(|next| next.starts_with("+++ ")));
        if is_start {
            return true;
        }
    }
    false
}

/// Marks the lines of a patch.
pub(crate) fn render(text: &str) -> Html {
    let mut html = Html::default();
    let mut is_inside = false;
    let mut lines = text.split_inclusive('\n').peekable();
    let mut is_new_name = false;
    while let Some(line) = lines.next() {
        is_inside |= line.starts_with("diff --git ")
            || line.starts_with("--- ")
            || line.starts_with("*** Begin Patch");
        // The names of a file: two lines, one after the other. A removed line may look like the first of them.
        let is_old_name =
            line.starts_with("--- ") && lines.peek().is_some_and(|next| next.starts_with("+++ "));
        let is_name = is_old_name || is_new_name;
        is_new_name = is_old_name;
        let class = match line.as_bytes().first() {
            _ if !is_inside => None,
            _ if is_name => Some("hunk"),
            Some(b'+') => Some("added"),
            Some(b'-') => Some("removed"),
            Some(b'@') => Some("hunk"),
            Some(b'*') => Some("hunk"),
            _ if line.starts_with("diff --git ") => Some("hunk"),
            _ => None,
        };
        match class {
            Some(class) => {
                html.push_format(format_args!("<span class=\"{class}\">"));
                html.push_text(line.trim_end_matches('\n'));
                html.push_markup("</span>");
                html.push_markup(if line.ends_with('\n') { "\n" } else { "" });
            }
            None => html.push_text(line),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_are_recognised_and_marked() {
        let patch = "see:\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-<old>\n+new\n same\n";
        assert!(is_diff(patch) && is_diff("*** Begin Patch\n") && is_diff("diff --git a/x b/x\n"));
        assert!(!is_diff("- a list\n+ another\n---\ntext"));
        let html = render(patch).to_string();
        assert!(html.contains(
            "<span class=\"removed\">-&lt;old&gt;</span>\n<span class=\"added\">+new</span>\n same"
        ));
        let names = "<span class=\"hunk\">--- a/x</span>\n<span class=\"hunk\">+++ b/x</span>\n";
        assert!(html.starts_with(&format!("see:\n{names}")), "{html}");
        let removed = render("--- a/x\n+++ b/x\n@@ -1 +0,0 @@\n--- a rule\n").to_string();
        assert!(removed.ends_with("<span class=\"removed\">--- a rule</span>\n"), "{removed}");
    }
}
