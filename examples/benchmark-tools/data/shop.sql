CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL, month TEXT NOT NULL, amount INTEGER NOT NULL, paid INTEGER NOT NULL);
INSERT INTO orders (customer, month, amount, paid) VALUES
  ('Ada', 'March', 120, 1), ('Grace', 'March', 80, 1), ('王芳', 'March', 200, 1), ('Ada', 'March', 55, 0),
  ('李雷', 'April', 310, 1), ('Grace', 'April', 90, 0), ('王芳', 'April', 45, 1);
