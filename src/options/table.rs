//! The options of a component as one table: `options!`.

/// Makes a struct of options, its reader and its default from one table.
///
/// ```
/// use tributary_options::options;
///
/// options! {
///     /// Options of a listener.
///     #[derive(Clone, Debug, PartialEq)]
///     pub struct Options {
///         /// The largest body, as transmitted.
///         pub max_body_bytes: u64 = size(64 << 20, 1 << 10..=1 << 30),
///         /// Threads that decode.
///         pub threads: usize as "decoders" = count(4, 1..=64),
///     }
/// }
/// assert_eq!(Options::default(), Options { max_body_bytes: 64 << 20, threads: 4 });
/// ```
///
/// - Behind `=` is the call of a [`Section`](crate::Section) that reads the option, without its first argument, the key. The
///   key is the name of the field, or the text behind `as`. Calls can follow it: `optional_section(Tls::read).flatten()`.
/// - The doc comment of a field is the sentence that the schema, the reference file and the tables of the documentation
///   have. They get default and bounds from the call, so it repeats neither.
/// - Options are read in this order, and a default can name the fields before it.
/// - `flat` reads a group of options in the same table, `no_option` is a field that no key sets.
/// - `struct Options checked by check`: the method `check(&mut self, section)` reports what does not fit together.
/// - `struct Options(parameter: Type)` is read by `Options::read(section, parameter)`, for defaults that depend on something
///   else, and has no `Default`.
#[macro_export]
macro_rules! options {
    ($(#[$meta:meta])* $vis:vis struct $name:ident $(checked by $check:ident)? { $($fields:tt)* }) => {
        $crate::options! { $(#[$meta])* $vis struct $name() $(checked by $check)? { $($fields)* } }

        impl Default for $name {
            fn default() -> Self {
                $crate::defaults($name::read)
            }
        }
    };
    ($(#[$meta:meta])* $vis:vis struct $name:ident($($parameter:ident: $of:ty),*) $(checked by $check:ident)? {
        $(
            $(#[doc = $sentence:literal])+
            $field_vis:vis $field:ident: $type:ty $(as $key:literal)? =
                $kind:ident($($argument:expr),* $(,)?) $(.$then:ident($($then_argument:expr),*))*
        ),* $(,)?
    }) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[doc = $sentence])+ $field_vis $field: $type,)*
        }

        impl $name {
            /// Reads the options; errors are reported to the section.
            pub fn read(section: &mut $crate::Section<'_> $(, $parameter: $of)*) -> Self {
                $(
                    let $field = section
                        .about(concat!($($sentence),+).trim_ascii())
                        .$kind([$($key,)? stringify!($field)][0] $(, $argument)*)
                        $(.$then($($then_argument),*))*;
                )*
                #[allow(unused_mut)]
                let mut options = $name { $($field),* };
                $(options.$check(section);)?
                options
            }
        }
    };
}
