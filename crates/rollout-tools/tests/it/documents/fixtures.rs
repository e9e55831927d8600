//! Documents made for the tests, well-formed ones and bombs.

use std::io::{Cursor, Write as _};

use zip::write::SimpleFileOptions;

/// An archive of these files.
pub(crate) fn archive(files: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, text) in files {
        archive.start_file(*name, SimpleFileOptions::default()).unwrap();
        archive.write_all(text.as_bytes()).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

/// A word processor document with this body.
pub(crate) fn docx(body: &str) -> Vec<u8> {
    let styles = r#"<w:styles xmlns:w="w"><w:style w:styleId="berschrift1"><w:name w:val="heading 1"/></w:style></w:styles>"#;
    let text =
        format!(r#"<?xml version="1.0"?><w:document xmlns:w="w"><w:body>{body}</w:body></w:document>"#);
    archive(&[("word/styles.xml", styles), ("word/document.xml", &text)])
}

/// A workbook with one sheet, `Cities`, with these rows.
pub(crate) fn xlsx(rows: &str) -> Vec<u8> {
    archive(&xlsx_parts(rows).iter().map(|(name, text)| (*name, text.as_str())).collect::<Vec<_>>())
}

pub(crate) fn xlsx_parts(rows: &str) -> Vec<(&'static str, String)> {
    let main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main";
    let relations = "http://schemas.openxmlformats.org/package/2006/relationships";
    let office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";
    vec![
        (
            "_rels/.rels",
            format!(
                r#"<Relationships xmlns="{relations}"><Relationship Id="rId1" Type="{office}/officeDocument" Target="xl/workbook.xml"/></Relationships>"#
            ),
        ),
        (
            "xl/workbook.xml",
            format!(
                r#"<workbook xmlns="{main}" xmlns:r="{office}"><sheets><sheet name="Cities" sheetId="1" r:id="rId1"/></sheets></workbook>"#
            ),
        ),
        (
            "xl/_rels/workbook.xml.rels",
            format!(
                r#"<Relationships xmlns="{relations}"><Relationship Id="rId1" Type="{office}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>"#
            ),
        ),
        (
            "xl/worksheets/sheet1.xml",
            format!(r#"<worksheet xmlns="{main}"><sheetData>{rows}</sheetData></worksheet>"#),
        ),
    ]
}

/// A PDF with one page for each of these lines.
pub(crate) fn pdf(pages: &[&str]) -> Vec<u8> {
    let kids: Vec<_> = (0..pages.len()).map(|nth| format!("{} 0 R", 4 + 2 * nth)).collect();
    let mut objects = vec![
        b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
        format!("<< /Type /Pages /Count {} /Kids [{}] >>", pages.len(), kids.join(" ")).into_bytes(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>".to_vec(),
    ];
    for (nth, text) in pages.iter().enumerate() {
        objects.push(page(5 + 2 * nth));
        objects.push(stream("", format!("BT /F1 12 Tf 72 720 Td ({text}) Tj ET").as_bytes()));
    }
    pdf_of(&objects)
}

/// A page whose content is this object; its font is object 3 and its parent is object 2.
pub(crate) fn page(content: usize) -> Vec<u8> {
    format!("<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {content} 0 R /Resources << /Font << /F1 3 0 R >> /XObject << /X 5 0 R >> >> >>")
        .into_bytes()
}

/// A stream with these entries in its dictionary.
pub(crate) fn stream(entries: &str, bytes: &[u8]) -> Vec<u8> {
    let mut object = format!("<< {entries} /Length {} >>\nstream\n", bytes.len()).into_bytes();
    object.extend_from_slice(bytes);
    object.extend_from_slice(b"\nendstream");
    object
}

/// A PDF of these objects, the first of which is its catalog.
pub(crate) fn pdf_of(objects: &[Vec<u8>]) -> Vec<u8> {
    let mut file = b"%PDF-1.4\n".to_vec();
    let mut places = Vec::new();
    for (nth, object) in objects.iter().enumerate() {
        places.push(file.len());
        file.extend_from_slice(format!("{} 0 obj\n", nth + 1).as_bytes());
        file.extend_from_slice(object);
        file.extend_from_slice(b"\nendobj\n");
    }
    let table = file.len();
    file.extend_from_slice(format!("xref\n0 {}\n0000000000 65535 f \n", places.len() + 1).as_bytes());
    for place in &places {
        file.extend_from_slice(format!("{place:010} 00000 n \n").as_bytes());
    }
    let trailer =
        format!("trailer\n<< /Size {} /Root 1 0 R >>\nstartxref\n{table}\n%%EOF\n", places.len() + 1);
    file.extend_from_slice(trailer.as_bytes());
    file
}

/// A deflated run of the same byte, below 144, of this many megabytes. It takes almost no time to make.
pub(crate) fn deflated_run(byte: u8, megabytes: usize) -> Vec<u8> {
    // One block with fixed codes: the byte itself, and then repeatedly "copy the last byte 258 times". Eight of
    // those take 13 bytes, so the rest of the stream repeats with that period.
    let mut bits = vec![1, 1, 0];
    bits.extend((0..8).rev().map(|nth| (0x30 + byte) >> nth & 1));
    for _ in 0..16 {
        bits.extend([1, 1, 0, 0, 0, 1, 0, 1]);
        bits.extend([0; 5]);
    }
    let bytes: Vec<u8> =
        bits.chunks(8).map(|byte| byte.iter().enumerate().map(|(nth, bit)| bit << nth).sum()).collect();
    let (start, period) = (&bytes[..2], &bytes[2..15]);
    [start, &period.repeat(megabytes * (1 << 20) / (8 * 258))].concat()
}

/// An archive with parts that are already deflated, and that claim to have this size.
pub(crate) fn archive_of_deflated(parts: &[(&str, &[u8])], claimed: u32) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in parts {
        let place = file.len() as u32;
        let mut common = Vec::new();
        for number in [20_u16, 0, 8, 0, 0] {
            common.extend_from_slice(&number.to_le_bytes());
        }
        for number in [0_u32, bytes.len() as u32, claimed] {
            common.extend_from_slice(&number.to_le_bytes());
        }
        common.extend_from_slice(&(name.len() as u16).to_le_bytes());
        common.extend_from_slice(&0_u16.to_le_bytes());
        file.extend_from_slice(b"PK\x03\x04");
        file.extend_from_slice(&common);
        file.extend_from_slice(name.as_bytes());
        file.extend_from_slice(bytes);
        directory.extend_from_slice(b"PK\x01\x02\x14\x00");
        directory.extend_from_slice(&common);
        directory.extend_from_slice(&[0; 10]);
        directory.extend_from_slice(&place.to_le_bytes());
        directory.extend_from_slice(name.as_bytes());
    }
    let (count, place) = (parts.len() as u16, file.len() as u32);
    file.extend_from_slice(&directory);
    file.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    file.extend_from_slice(&count.to_le_bytes());
    file.extend_from_slice(&count.to_le_bytes());
    file.extend_from_slice(&(directory.len() as u32).to_le_bytes());
    file.extend_from_slice(&place.to_le_bytes());
    file.extend_from_slice(&[0; 2]);
    file
}
