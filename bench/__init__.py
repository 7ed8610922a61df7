"""What is measured for speed and size: ratios in one run, rivals taking turns; tables printed, nothing asserted.

python -m bench                         everything
python -m bench step --threads 2        one table, on two threads
python -m bench --quick                 the smallest configuration of each: does it run?
"""
