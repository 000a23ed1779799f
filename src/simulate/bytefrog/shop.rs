//! The invented shop that is traced: its methods and their calls.

/// A traced method.
#[derive(Debug)]
pub(super) struct ShopMethod {
    /// Class with slashes, name, access flags, descriptor.
    pub(super) signature: &'static str,
    /// The line of its first statement.
    pub(super) line: u16,
    /// The number of lines that a call may execute.
    pub(super) lines: u16,
    /// The methods that a call may call, in any order: indexes in [`METHODS`].
    pub(super) calls: &'static [u16],
    /// Whether it comes from a page: its lines are those of the page.
    pub(super) is_page: bool,
}

impl ShopMethod {
    /// Its class, as class events name it.
    pub(super) fn class(&self) -> &'static str {
        let name = self.signature.split(';').next().unwrap_or_default();
        name.rsplit_once('.').map_or(name, |(class, _)| class)
    }
}

/// The methods in which the first thread and all others start. They are never left.
pub(super) const MAIN: u16 = 0;
pub(super) const RUN: u16 = 1;

/// All methods. Two class loaders have loaded `Discount`, so its method has two ids.
pub(super) static METHODS: [ShopMethod; 28] = [
    method("shop/Shop.main;9;([Ljava/lang/String;)V", 21, 3, &[2, 3, 4, 5]),
    method("shop/web/Worker.run;1;()V", 44, 2, &[2, 3, 4, 5, 6]),
    method("shop/web/ProductServlet.doGet;4;(Lshop/web/Request;Lshop/web/Response;)V", 31, 4, &[7, 8, 10, 26]),
    method("shop/web/CartServlet.doGet;4;(Lshop/web/Request;Lshop/web/Response;)V", 28, 3, &[7, 9, 13, 26]),
    method("shop/web/CartServlet.doPost;4;(Lshop/web/Request;Lshop/web/Response;)V", 47, 4, &[7, 9, 14, 12]),
    method("shop/web/CheckoutServlet.doPost;4;(Lshop/web/Request;Lshop/web/Response;)V", 39, 6, &[7, 9, 15, 17, 18]),
    method("shop/web/Worker.lambda$run$0;4106;(Lshop/web/Session;)V", 52, 1, &[19]),
    method("shop/web/Session.of;9;(Lshop/web/Request;)Lshop/web/Session;", 17, 2, &[19, 20]),
    method("shop/catalog/ProductRepository.find;1;(J)Lshop/catalog/Product;", 33, 3, &[19, 21]),
    method("shop/cart/CartRepository.load;1;(J)Lshop/cart/Cart;", 29, 3, &[21, 11]),
    method("shop/catalog/Product.<init>;0;(JLjava/lang/String;)V", 12, 1, &[]),
    method("shop/cart/Cart.<init>;0;()V", 9, 1, &[]),
    method("shop/cart/CartRepository.save;1;(Lshop/cart/Cart;)V", 58, 3, &[21, 20]),
    method("shop/cart/Cart.total;17;()J", 41, 2, &[16, 24, 25]),
    method("shop/cart/Cart.add;1;(Lshop/catalog/Product;I)V", 24, 2, &[16, 23]),
    method("shop/order/OrderService.place;1;(Lshop/cart/Cart;)Lshop/order/Order;", 64, 5, &[13, 22, 21, 23]),
    method("shop/catalog/Product.getPrice;17;()J", 30, 1, &[]),
    method("shop/payment/Bank.charge;1;(JLjava/lang/String;)Lshop/payment/Receipt;", 77, 4, &[23, 27]),
    method("shop/order/Mail.send;1;(Lshop/order/Order;)V", 26, 2, &[23]),
    method("shop/cache/Cache.get;33;(Ljava/lang/Object;)Ljava/lang/Object;", 45, 2, &[20]),
    method("shop/cache/Cache.hash;10;(Ljava/lang/Object;)I", 61, 1, &[]),
    method("shop/db/Query.run;129;(Ljava/lang/String;[Ljava/lang/Object;)Lshop/db/Rows;", 88, 3, &[20, 23]),
    method("shop/stock/Lager.pr\u{fc}fe;1;(JI)Z", 35, 2, &[21]),
    method("shop/util/Text.trim;9;(Ljava/lang/String;)Ljava/lang/String;", 14, 2, &[23]),
    method("shop/cart/Discount.apply;9;(J)J", 18, 2, &[]),
    method("shop/cart/Discount.apply;9;(J)J", 18, 2, &[]),
    page("org/apache/jsp/product_jsp._jspService;1;(Lshop/web/Request;Lshop/web/Response;)V", 40_012, 4, &[16, 23]),
    method("shop/payment/Bank$1.\u{1f4b6};4096;()V", 102, 1, &[]),
];

/// The exceptions that it throws.
pub(super) static EXCEPTIONS: [&str; 4] = [
    "java.lang.IllegalStateException",
    "shop.stock.OutOfStockException",
    "java.lang.ArithmeticException",
    "shop.payment.Bank$DeclinedException",
];

/// Classes of the platform that are loaded at the start and not traced.
pub(super) static IGNORED_CLASSES: [&str; 12] = [
    "sun/launcher/LauncherHelper",
    "jdk/internal/loader/URLClassPath$FileLoader$1",
    "java/security/SecureClassLoader$CodeSourceKey",
    "java/security/PermissionCollection",
    "sun/security/util/LazyCodeSourcePermissionCollection",
    "java/security/Permissions",
    "java/lang/IllegalStateException",
    "java/lang/Readable",
    "java/nio/CharBuffer",
    "java/util/IdentityHashMap$KeyIterator",
    "java/net/SocketTimeoutException",
    "java/io/InterruptedIOException",
];

/// A class that some agents fail to transform.
pub(super) const UNTRANSFORMABLE_CLASS: &str = "shop/legacy/Report$$Generated";

const fn method(signature: &'static str, line: u16, lines: u16, calls: &'static [u16]) -> ShopMethod {
    ShopMethod { signature, line, lines, calls, is_page: false }
}

const fn page(signature: &'static str, line: u16, lines: u16, calls: &'static [u16]) -> ShopMethod {
    ShopMethod { signature, line, lines, calls, is_page: true }
}
