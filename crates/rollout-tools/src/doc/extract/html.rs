//! Pages: turned into Markdown first.

use htmd::HtmlToMarkdown;

use super::{ExtractError, Sections, markdown};

/// What is on a page but not part of what it says.
const NO_TEXT: [&str; 9] =
    ["head", "iframe", "nav", "noscript", "script", "style", "svg", "template", "object"];

pub(super) fn read(page: &str, sections: &mut Sections<'_>) -> Result<(), ExtractError> {
    let converter = HtmlToMarkdown::builder().skip_tags(NO_TEXT.to_vec()).build();
    let text = converter.convert(page).map_err(ExtractError::malformed)?;
    markdown::read(&text, sections)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::super::{Format, Limits, Section, extract};

    #[test]
    fn what_is_not_said_on_a_page_is_left_out() {
        let page = "<html><head><title>T</title><style>p{}</style></head><body><nav>Home</nav>
            <h1>Paris</h1><p>The <b>capital</b> of France.</p><script>alert(1)</script>
            <h2>River</h2><p>Seine &amp; more.</p></body></html>";
        let found = extract(Format::Html, Cursor::new(page), &Limits::default()).unwrap();
        let section = |title: &str, text: &str| Section { title: title.to_owned(), text: text.to_owned() };
        assert_eq!(
            found,
            [section("Paris", "The **capital** of France."), section("Paris > River", "Seine & more.")]
        );
    }
}
