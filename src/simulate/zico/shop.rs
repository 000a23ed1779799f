//! The simulated shop: its methods, and the call trees of visits.

use super::super::rng::Rng;

/// An instrumented method.
#[derive(Debug)]
pub(super) struct ShopMethod {
    pub(super) class: &'static str,
    pub(super) name: &'static str,
    pub(super) signature: &'static str,
    /// The methods that it may call, and how often at most.
    calls: &'static [(usize, u64)],
    /// Its own exception, if it can fail.
    fails_with: Option<(&'static str, &'static str)>,
    /// The type of the trace that it starts.
    pub(super) begins: Option<&'static str>,
}

const fn method(
    class: &'static str,
    name: &'static str,
    signature: &'static str,
    calls: &'static [(usize, u64)],
) -> ShopMethod {
    ShopMethod { class, name, signature, calls, fails_with: None, begins: None }
}

/// Callees come after their callers, so that no call is recursive.
pub(super) static METHODS: [ShopMethod; 16] = [
    ShopMethod {
        begins: Some("HTTP"),
        ..method(WEB, "showProduct", "(J)Lshop/Page;", &[(4, 1), (5, 1), (8, 12), (15, 3)])
    },
    ShopMethod { begins: Some("HTTP"), ..method(WEB, "showCart", "(J)Lshop/Page;", &[(4, 1), (6, 1), (15, 2)]) },
    ShopMethod {
        begins: Some("HTTP"),
        ..method(WEB, "checkOut", "(JLjava/lang/String;)V", &[(4, 1), (6, 1), (7, 1), (15, 1)])
    },
    ShopMethod { begins: Some("JOB"), ..method("shop.jobs.Stock", "recount", "()I", &[(9, 40), (10, 2)]) },
    method("shop.web.Sessions", "find", "(Ljava/lang/String;)Lshop/Session;", &[(11, 1)]),
    method("shop.Catalogue", "product", "(J)Lshop/Product;", &[(11, 1), (9, 1)]),
    method("shop.Cart", "load", "(J)Lshop/Cart;", &[(9, 15)]),
    ShopMethod {
        fails_with: Some(("shop.PaymentRefused", "the card was refused")),
        begins: Some("PAYMENT"),
        ..method("shop.Payments", "charge", "(JLjava/math/BigDecimal;)V", &[(12, 2), (10, 1)])
    },
    method("shop.Catalogue", "related", "(J)Ljava/util/List;", &[(9, 1), (13, 4)]),
    ShopMethod {
        fails_with: Some(("java.sql.SQLTimeoutException", "no answer within 3000 ms")),
        ..method(JDBC, "executeQuery", "(Ljava/lang/String;)Ljava/sql/ResultSet;", &[(14, 3)])
    },
    method(JDBC, "executeUpdate", "(Ljava/lang/String;)I", &[(14, 1)]),
    method("shop.Cache", "get", "(Ljava/lang/Object;)Ljava/lang/Object;", &[]),
    ShopMethod {
        fails_with: Some(("java.io.IOException", "connection reset by peer")),
        begins: Some("GATEWAY"),
        ..method("shop.net.Client", "post", "(Ljava/net/URI;[B)I", &[])
    },
    method("shop.Price", "rounded", "()Ljava/math/BigDecimal;", &[]),
    method("org.h2.engine.Session", "prepare", "(Ljava/lang/String;)V", &[]),
    method("shop.web.Template", "render", "(Ljava/util/Map;)Ljava/lang/String;", &[(13, 8)]),
];

const WEB: &str = "shop.web.Controller";
const JDBC: &str = "org.h2.jdbc.JdbcPreparedStatement";
/// Traces start with one of the first methods.
const ROOTS: u64 = 4;
/// One of this many calls fails, of those that can fail.
const FAILURES: u64 = 60;
/// A local tracer submits an inner trace by itself if it takes this long (`tracer.min.trace.time`).
const MIN_TRACE_NANOS: u64 = 200_000;

/// One call.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// The index of its method in [`METHODS`].
    pub(super) method: usize,
    pub(super) start_nanos: u64,
    pub(super) end_nanos: u64,
    /// The number of instrumented calls, including this one and those that the agent left out.
    pub(super) calls: u64,
    pub(super) attributes: Vec<(&'static str, AttributeValue)>,
    pub(super) upward: Option<Upward>,
    pub(super) children: Vec<Call>,
    pub(super) thrown: Option<Thrown>,
    /// The span id of the trace that it begins, in a distributed context.
    pub(super) span: i64,
}

/// An attribute of the enclosing trace of a type, or of any type (`None`).
type Upward = (Option<&'static str>, &'static str, AttributeValue);

/// The exception that ended a call.
#[derive(Clone, Debug)]
pub(super) enum Thrown {
    /// It threw the exception itself.
    New(Exception),
    /// A call that it made threw the exception, and it did not catch it.
    Passed { id: u64 },
}

#[derive(Clone, Debug)]
pub(super) struct Exception {
    pub(super) id: u64,
    pub(super) class: &'static str,
    pub(super) message: &'static str,
    /// The index of each method in [`METHODS`], and a line; innermost first.
    pub(super) stack: Vec<(usize, i64)>,
}

/// The value of an attribute.
#[derive(Clone, Debug)]
pub(super) enum AttributeValue {
    Text(String),
    Int(i64),
    Float(f64),
    Bool(bool),
    List(Vec<AttributeValue>),
    Nothing,
}

/// Generates one trace.
pub(super) struct Visit<'a> {
    pub(super) rng: &'a mut Rng,
    /// How many events may still be generated: each record is one, and each log of an exception.
    pub(super) left: u64,
    /// Whether callers through which an exception passes also log it.
    pub(super) passes: bool,
    /// Whether inner traces are submitted by themselves, too.
    pub(super) is_local: bool,
    path: Vec<usize>,
    /// The exception that was thrown last.
    thrown: Option<Exception>,
}

impl<'a> Visit<'a> {
    pub(super) fn new(rng: &'a mut Rng, left: u64, passes: bool, is_local: bool) -> Self {
        Visit { rng, left, passes, is_local, path: Vec::new(), thrown: None }
    }

    /// The call tree of a visit that ends at `end_nanos`. At least one event must be left.
    pub(super) fn call_tree(&mut self, end_nanos: u64) -> Call {
        let root = self.rng.below(ROOTS) as usize;
        let mut call = self.call(root, 0);
        let duration = call.end_nanos;
        if self.is_local {
            call.resolve_upward();
        }
        shift(&mut call, end_nanos.saturating_sub(duration));
        call
    }

    /// A call that starts at `start_nanos`.
    fn call(&mut self, method: usize, start_nanos: u64) -> Call {
        self.left -= 1;
        self.path.push(method);
        let known = &METHODS[method];
        let mut now = start_nanos + self.rng.below(80_000);
        let mut call = Call {
            method,
            start_nanos,
            end_nanos: now,
            calls: 1 + if self.rng.one_in(5) { self.rng.below(300) } else { 0 },
            attributes: self.attributes(method),
            upward: None,
            children: Vec::new(),
            thrown: None,
            span: self.rng.next() as i64 | 1,
        };
        if method == 7 && self.rng.one_in(3) {
            call.upward = Some((Some("HTTP"), "order", AttributeValue::Int(self.rng.below(100_000) as i64)));
        } else if method == 6 {
            call.upward = Some((None, "cart.items", AttributeValue::Int(self.rng.below(15) as i64)));
        }
        'calls: for &(callee, most) in known.calls {
            for _ in 0..1 + self.rng.below(most) {
                if self.left == 0 {
                    break 'calls;
                }
                let child = self.call(callee, now);
                now = child.end_nanos + self.rng.below(20_000);
                call.calls += child.calls;
                let passed = child.thrown.as_ref().map(Thrown::id);
                let is_submitted = self.is_local && child.is_submitted();
                call.children.push(child);
                if let Some(id) = passed {
                    // A caller that catches it continues.
                    if (self.passes || is_submitted) && self.left > 0 && !self.rng.one_in(4) {
                        self.left -= 1;
                        // The tracer does not recognise an exception that it submitted before, so it sends it again.
                        let again = self.thrown.clone().filter(|_| is_submitted);
                        call.thrown = Some(again.map_or(Thrown::Passed { id }, |thrown| {
                            Thrown::New(Exception { id: self.rng.below(1 << 31) | 1, ..thrown })
                        }));
                        break 'calls;
                    }
                }
            }
        }
        if let (Some((class, message)), None, 1..) = (known.fails_with, &call.thrown, self.left)
            && self.rng.one_in(FAILURES)
        {
            self.left -= 1;
            let line = |rng: &mut Rng| if rng.one_in(9) { -1 } else { 20 + rng.below(700) as i64 };
            let stack = self.path.iter().rev().map(|method| (*method, line(self.rng))).collect();
            // Like the identity hash of real agents: 31 bits.
            let id = self.rng.below(1 << 31) | 1;
            let exception = Exception { id, class, message, stack };
            self.thrown = Some(exception.clone());
            call.thrown = Some(Thrown::New(exception));
        }
        call.end_nanos = now + 1 + self.rng.below(400_000);
        self.path.pop();
        call
    }

    fn attributes(&mut self, method: usize) -> Vec<(&'static str, AttributeValue)> {
        let rng = &mut *self.rng;
        let text = |text: &str| AttributeValue::Text(text.to_owned());
        match method {
            0..=2 => {
                let path = ["product", "cart", "checkout"][method];
                let url = AttributeValue::Text(format!("http://shop.example/{path}/{}", rng.below(5000)));
                let mut attributes = vec![("http.url", url), ("http.status", AttributeValue::Int(200))];
                attributes.push(("thread.name", AttributeValue::Text(format!("http-{}", 1 + rng.below(8)))));
                if rng.one_in(4) {
                    attributes.push(("user", AttributeValue::Nothing));
                    attributes.push(("load", AttributeValue::Float(rng.below(400) as f64 / 100.0)));
                    attributes.push(("mobile", AttributeValue::Bool(rng.one_in(2))));
                }
                attributes
            }
            3 => vec![
                ("local.service", text("stock")),
                ("shelves", AttributeValue::List(vec![AttributeValue::Int(3), text("B-7")])),
            ],
            7 => vec![("amount", AttributeValue::Text(format!("{}.95", rng.below(300))))],
            9 | 10 if rng.one_in(3) => {
                let table = *rng.pick(&["products", "carts", "orders"]);
                vec![(
                    "db.statement",
                    AttributeValue::Text(format!("select * from {table} where id = {}", rng.below(9999))),
                )]
            }
            _ => Vec::new(),
        }
    }
}

impl Call {
    /// The type of the trace that begins here.
    pub(super) fn begins(&self) -> Option<&'static str> {
        METHODS[self.method].begins
    }

    /// Whether a local tracer submits it as a trace by itself.
    pub(super) fn is_submitted(&self) -> bool {
        self.begins().is_some() && self.end_nanos - self.start_nanos >= MIN_TRACE_NANOS
    }

    /// The number of its records and exceptions, without those of inner traces that are submitted by themselves.
    pub(super) fn events(&self) -> u64 {
        let inner = self.children.iter().filter(|child| !child.is_submitted()).map(Call::events);
        1 + u64::from(self.has_failed()) + inner.sum::<u64>()
    }

    /// The inner traces that a local tracer submits by themselves, in the order in which they end, each with the span of the
    /// trace that encloses it. `outer` is that of the trace that encloses this call.
    pub(super) fn submitted<'a>(&'a self, outer: Option<i64>, into: &mut Vec<(&'a Call, Option<i64>)>) {
        let outer = if self.begins().is_some() { Some(self.span) } else { outer };
        for child in &self.children {
            child.submitted(outer, into);
            if child.is_submitted() {
                into.push((child, outer));
            }
        }
    }

    /// Puts upward attributes on the traces that they belong to, as local tracers do. Returns those without one.
    fn resolve_upward(&mut self) -> Vec<Upward> {
        let mut open: Vec<Upward> = self.children.iter_mut().flat_map(Call::resolve_upward).collect();
        open.extend(self.upward.take());
        let Some(own) = self.begins() else { return open };
        let (here, open): (Vec<_>, Vec<_>) =
            open.into_iter().partition(|(kind, ..)| kind.is_none_or(|kind| kind == own));
        for (_, key, value) in here {
            self.attributes.retain(|(known, _)| *known != key);
            self.attributes.push((key, value));
        }
        open
    }

    /// Whether an exception left the call.
    pub(super) fn has_failed(&self) -> bool {
        self.thrown.is_some()
    }
}

impl Thrown {
    fn id(&self) -> u64 {
        match self {
            Thrown::New(exception) => exception.id,
            Thrown::Passed { id } => *id,
        }
    }
}

fn shift(call: &mut Call, nanos: u64) {
    call.start_nanos += nanos;
    call.end_nanos += nanos;
    call.children.iter_mut().for_each(|child| shift(child, nanos));
}
