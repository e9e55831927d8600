//! Web pages, which are first converted to Markdown.

use super::{ExtractError, Sections, markdown};
use crate::web::html::to_markdown;

pub(super) fn read(page: &str, sections: &mut Sections<'_>) -> Result<(), ExtractError> {
    let page = to_markdown(page, None, || true);
    if page.is_cut {
        return Err(ExtractError::Text(page.markdown.len()));
    }
    markdown::read(&page.markdown, sections)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::super::{DocumentFormat, DocumentSection, ExtractLimits, extract};

    #[test]
    fn invisible_parts_of_a_page_are_omitted() {
        let page = "<html><head><title>T</title><style>p{}</style></head><body><nav>Home</nav>
            <h1>Paris</h1><p>The <b>capital</b> of France.</p><script>alert(1)</script>
            <h2>River</h2><p>Seine &amp; more.</p></body></html>";
        let found = extract(DocumentFormat::Html, Cursor::new(page), &ExtractLimits::default()).unwrap();
        let section =
            |title: &str, text: &str| DocumentSection { title: title.to_owned(), text: text.to_owned() };
        assert_eq!(
            found,
            [section("Paris", "The **capital** of France."), section("Paris > River", "Seine & more.")]
        );
    }
}
