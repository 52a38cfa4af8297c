"""`python -m s3bert`, the same as the console command `s3bert`."""

from s3bert.commands import main


if __name__ == "__main__":
    main()
