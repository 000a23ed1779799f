//! What all options are: a description, and from it a JSON Schema for editors.

use serde_json::{Map, Value, json};

use super::Config;
use tributary_options::units;
use tributary_options::{Description, Setting, ValueKind, describe};
use tributary_protocol::Protocol;

impl Config {
    /// Every option, as the readers of a file read it. Listeners have the names of their protocols. Sinks have those of their
    /// types; of `parquet` there are several, because the options of an upload depend on the store.
    pub fn describe() -> Description {
        let listener = |protocol: Protocol| format!("[listeners.{protocol}]\nprotocol = \"{protocol}\"\n");
        let sink = |(name, _): (&str, _)| format!("[sinks.{name}]\ntype = \"{name}\"\n");
        let store = |scheme: &str| {
            format!("[sinks.parquet-{scheme}]\ntype = \"parquet\"\nupload.url = \"{scheme}://bucket\"\n")
        };
        let listeners = Protocol::ALL.map(listener).concat();
        let sinks = super::sinks::TYPES.map(sink).concat() + &["gs", "az"].map(store).concat();
        describe(&format!("{listeners}{sinks}"), Config::read_root)
    }
}

/// The JSON Schema (draft 2020-12) of a configuration file.
pub(crate) fn schema() -> Value {
    let Description { settings, tables } = Config::describe();
    let mut root = Table::default();
    settings.iter().for_each(|setting| root.add(&path(&setting.path()), setting));
    tables.iter().for_each(|(table, sentence)| root.describe(&path(table), sentence));
    let mut definitions = Map::new();
    let mut schema = root.into_schema();
    for (group, key) in [("listeners", "protocol"), ("sinks", "type")] {
        let Value::Object(variants) = schema["properties"][group]["properties"].take() else { continue };
        let names: Vec<_> = variants.keys().collect();
        let definition = |name: &String| json!({ "$ref": format!("#/$defs/{group}.{name}") });
        let of =
            |name: &&String| json!({ "if": { "properties": { key: { "const": name } } }, "then": definition(name) });
        schema["properties"][group] = json!({
            "type": "object",
            "minProperties": 1,
            "propertyNames": { "pattern": "^[A-Za-z0-9_-]{1,64}$" },
            "additionalProperties": {
                "type": "object",
                "properties": { key: { "enum": names } },
                "required": [key],
                "allOf": names.iter().map(of).collect::<Vec<_>>(),
                // Always true: for editors that complete keys without `if`, as Taplo does.
                "anyOf": names.iter().map(|name| definition(name)).chain([json!({})]).collect::<Vec<_>>(),
            },
        });
        definitions.extend(variants.into_iter().map(|(name, variant)| (format!("{group}.{name}"), variant)));
    }
    let include = "Further files, whose tables are added. Patterns are relative to the directory of this file.";
    schema["properties"]["include"] = json!({ "type": "array", "items": { "type": "string" }, "description": include });
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("Configuration of tributary");
    schema["$defs"] = definitions.into();
    schema
}

/// The options of a table, in the order in which they are read.
#[derive(Default)]
struct Table {
    description: Option<&'static str>,
    members: Vec<(String, Member)>,
    required: Vec<String>,
}

enum Member {
    Value(Value),
    Table(Table),
}

impl Table {
    /// Adds an option at this path, unless it is there.
    fn add(&mut self, path: &[&str], setting: &Setting) {
        let [key, below @ ..] = path else { return };
        if !below.is_empty() {
            if let Some(table) = self.table(key) {
                table.add(below, setting);
            }
        } else if !self.members.iter().any(|(name, _)| name == key) {
            if setting.is_required {
                self.required.push((*key).to_owned());
            }
            self.members.push(((*key).to_owned(), Member::Value(option(setting))));
        }
    }

    /// Says what the table at this path means.
    fn describe(&mut self, path: &[&str], sentence: &'static str) {
        match path {
            [key, below @ ..] => self.table(key).into_iter().for_each(|table| table.describe(below, sentence)),
            [] => self.description = Some(sentence),
        }
    }

    /// The table `key`, which is added if it is not there. `None`: an option has this key.
    fn table(&mut self, key: &str) -> Option<&mut Table> {
        if !self.members.iter().any(|(name, _)| name == key) {
            self.members.push((key.to_owned(), Member::Table(Table::default())));
        }
        self.members.iter_mut().find_map(|(name, member)| match member {
            Member::Table(table) if name == key => Some(table),
            _ => None,
        })
    }

    fn into_schema(self) -> Value {
        let schema_of = |member| match member {
            Member::Value(value) => value,
            Member::Table(table) => table.into_schema(),
        };
        let properties: Map<_, _> = self.members.into_iter().map(|(key, member)| (key, schema_of(member))).collect();
        let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
        if !self.required.is_empty() {
            schema["required"] = json!(self.required);
        }
        if let Some(description) = self.description {
            schema["description"] = json!(description);
        }
        schema
    }
}

/// The schema of an option: its values, its sentence with its bounds, and its default.
fn option(setting: &Setting) -> Value {
    let mut schema = values(&setting.kind);
    schema["description"] = json!(setting.meaning());
    if let Some(default) = setting.value.as_ref().filter(|_| !setting.is_required).and_then(|value| json_of(value)) {
        schema["default"] = default;
    }
    schema
}

/// A value in TOML as JSON.
fn json_of(value: &str) -> Option<Value> {
    let document: toml::Table = format!("value = {value}").parse().ok()?;
    serde_json::to_value(document.get("value")?).ok()
}

/// The values that an option can have.
fn values(kind: &ValueKind) -> Value {
    match kind {
        ValueKind::Bool => json!({ "type": "boolean" }),
        ValueKind::Count(allowed) => json!({ "type": "integer", "minimum": allowed.start(), "maximum": allowed.end() }),
        ValueKind::Size(allowed) => {
            let mut size = text(&["integer"]);
            size["minimum"] = json!(allowed.start());
            size["maximum"] = json!(allowed.end());
            size["pattern"] = json!(format!("^[0-9]+({})?$|{VARIABLE}", units::size_units().join("|")));
            size
        }
        ValueKind::Duration(_) | ValueKind::DurationOrNone(_) => {
            let mut duration = text(&[]);
            let repeated = if matches!(kind, ValueKind::Duration(_)) { '+' } else { '*' };
            let units = units::duration_units().join("|");
            duration["pattern"] = json!(format!("^([0-9]+({units})){repeated}$|{VARIABLE}"));
            duration
        }
        ValueKind::Number => json!({ "type": "number" }),
        ValueKind::Fraction => json!({ "type": "number", "minimum": 0, "maximum": 1 }),
        ValueKind::Text => text(&[]),
        ValueKind::Choice(names) => {
            let mut other = text(&[]);
            other["pattern"] = json!(VARIABLE);
            json!({ "anyOf": [{ "enum": names }, other] })
        }
        ValueKind::Scalar => text(&["number", "boolean"]),
        ValueKind::List(element) => json!({ "type": "array", "items": values(element) }),
        ValueKind::Names(element) => json!({ "type": "object", "additionalProperties": values(element) }),
        ValueKind::Tables(settings) => {
            let mut table = Table::default();
            settings.iter().for_each(|setting| table.add(&path(&setting.key), setting));
            json!({ "type": "array", "items": table.into_schema() })
        }
    }
}

/// A text, as it is or as `{ file = "…" }` or `{ env = "…" }`, or a value of another type.
fn text(others: &[&str]) -> Value {
    let types = [&["string", "object"], others].concat();
    json!({
        "type": types,
        "propertyNames": { "enum": ["file", "env"] },
        "additionalProperties": { "type": "string", "minLength": 1 },
        "minProperties": 1,
        "maxProperties": 1,
    })
}

/// A dotted path. The sinks of one type are one: `sinks.parquet-gs` is `sinks.parquet`.
fn path(dotted: &str) -> Vec<&str> {
    let mut names: Vec<_> = dotted.split('.').collect();
    if let ["sinks", name, ..] = &mut names[..]
        && let Some((of, _)) = name.split_once('-')
    {
        *name = of;
    }
    names
}

/// What a text with a variable of the environment has in it.
const VARIABLE: &str = "\\$\\{";
