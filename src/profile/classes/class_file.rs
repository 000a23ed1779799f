//! The methods of one class file.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io;

use noak::reader::cpool::ConstantPool;
use noak::reader::{Attribute, AttributeContent, Class};

use super::{ClassMethod, MAX_NAME_BYTES, METHOD_BYTES, Reader, Take, invalid};
use tributary_codec::mutf8;

impl Reader {
    /// Passes on the methods with code of a class file.
    pub(super) fn methods(&mut self, bytes: &[u8], take: &mut Take<'_>) -> io::Result<()> {
        // noak reserves memory for the declared number of constants; one has 3 bytes at least.
        let constants = bytes.get(8..10).map_or(0, |count| usize::from(u16::from_be_bytes([count[0], count[1]])));
        if constants > bytes.len() / 3 {
            return Err(invalid(format!("{constants} constants are declared in {} bytes", bytes.len())));
        }
        let class = Class::new(bytes).map_err(invalid)?;
        let pool = class.pool();
        let class_name =
            mutf8::read(pool.retrieve(class.this_class()).map_err(invalid)?.name.as_bytes()).0.replace('/', ".");
        // The agent sends the lines of the files that the class was translated from.
        let mut is_translated = false;
        for attribute in class.attributes() {
            is_translated |= is_named(pool, &attribute.map_err(invalid)?, b"SourceDebugExtension")?;
        }
        for method in class.methods() {
            let method = method.map_err(invalid)?;
            let name = pool.retrieve(method.name()).map_err(invalid)?.as_bytes();
            let descriptor = pool.retrieve(method.descriptor()).map_err(invalid)?.as_bytes();
            let Some(mut lines) = lines_of_code(pool, &method)? else { continue };
            if is_translated {
                lines.clear();
            }
            self.name_bytes += METHOD_BYTES + class_name.len() + name.len() + descriptor.len() + 2 * lines.len();
            if self.name_bytes > MAX_NAME_BYTES {
                return Err(invalid(format!("names and lines of methods have more than {MAX_NAME_BYTES} bytes")));
            }
            let (name, descriptor) = (mutf8::read(name).0, mutf8::read(descriptor).0);
            take(ClassMethod { class: Cow::Borrowed(&class_name), name, descriptor, lines })?;
        }
        Ok(())
    }
}

/// The lines of a method; `None`: it has no code.
fn lines_of_code(pool: &ConstantPool<'_>, method: &noak::reader::Method<'_>) -> io::Result<Option<BTreeSet<u16>>> {
    let mut found = None;
    for attribute in method.attributes() {
        let attribute = attribute.map_err(invalid)?;
        if !is_named(pool, &attribute, b"Code")? {
            continue;
        }
        let AttributeContent::Code(code) = attribute.read_content(pool).map_err(invalid)? else { continue };
        let lines: &mut BTreeSet<u16> = found.get_or_insert_default();
        for attribute in code.attributes() {
            let attribute = attribute.map_err(invalid)?;
            // noak 0.7 reads 32 bits where this attribute has 16: a number of pairs of 16 bits, offset and line.
            if is_named(pool, &attribute, b"LineNumberTable")? {
                lines.extend(
                    attribute
                        .content()
                        .chunks_exact(2)
                        .skip(2)
                        .step_by(2)
                        .map(|line| u16::from_be_bytes([line[0], line[1]])),
                );
            }
        }
    }
    Ok(found)
}

fn is_named(pool: &ConstantPool<'_>, attribute: &Attribute<'_>, name: &[u8]) -> io::Result<bool> {
    Ok(pool.retrieve(attribute.name()).map_err(invalid)?.as_bytes() == name)
}
